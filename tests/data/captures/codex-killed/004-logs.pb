
ê
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
prod­

codex_otel.log_only“	INFO2!

event.name
codex.user_prompt2
prompt_length
192
prompt
[[K1]] Wait for it.2-
event.timestamp
2026-11-23T13:06:57.197Z29
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
gpt-5.2-codexYe ã”t®êb/event otel/src/events/session_telemetry.rs:1200