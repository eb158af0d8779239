//! Loops: unbroken runs of tool calls.
