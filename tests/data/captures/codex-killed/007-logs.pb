
´
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
prod÷

codex_otel.log_onlyÝ	INFO2#

event.name
codex.tool_decision2
	tool_name
exec_command2
tool_namespace
	functions2
call_id
	call_00302
decision

approved2
source
Config2-
event.timestamp
2026-11-23T13:06:59.557Z29
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
gpt-5.2-codexYé‡!u®êb/event otel/src/events/session_telemetry.rs:1225