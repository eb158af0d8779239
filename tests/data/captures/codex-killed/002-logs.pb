
”
·
!
telemetry.sdk.version
0.31.0

service.name

codex_exec

service.version	
0.169.0
%
telemetry.sdk.name
opentelemetry
 
telemetry.sdk.language
rust

env
prod×

codex_otel.log_only½	INFO2#

event.name
codex.startup_phase2-
startup.phase
thread_start_create_thread2
startup.status
ready2
duration_ms
21572-
event.timestamp
2026-11-23T13:06:55.326Z29
conversation.id&
$01a20884-3a64-7603-80d0-9d7769edecf92
app.version	
0.169.02

originator

codex_exec2!
terminal.type
xterm-256color2
model
gpt-5.2-codex2
slug
gpt-5.2-codexYv3Z%t®êb.event otel/src/events/session_telemetry.rs:377