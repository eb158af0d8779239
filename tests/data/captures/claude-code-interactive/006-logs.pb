
˜	
g

	host.arch
amd64

os.type
linux

service.name
claude-code

service.version	
2.1.197ã	
+
 com.anthropic.claude_code.events2.1.197Õ	@ÅﬂRﬂ´Í*
claude_code.tool_decision2
user.id
user-124

session.id&
$987667d6-c276-4378-8da3-ed7464dcd6142!
terminal.type
xterm-256color2

event.name
tool_decision2-
event.timestamp
2026-11-23T12:19:37.117Z2
event.sequence23
	prompt.id&
$382e246f-0c8b-41b6-bf85-9b0f577790422
decision
accept2
source
config2
	tool_name
Agent2
tool_use_id

toolu_005028
tool_parameters%
#{"subagent_type":"general-purpose"}Y@ÅﬂRﬂ´Íã	@~#gﬂ´Í*
claude_code.api_request2
user.id
user-124

session.id&
$987667d6-c276-4378-8da3-ed7464dcd6142!
terminal.type
xterm-256color2

event.name
api_request2-
event.timestamp
2026-11-23T12:19:37.457Z2
event.sequence23
	prompt.id&
$382e246f-0c8b-41b6-bf85-9b0f577790422
model
claude-opus-4-82
input_tokensi2
output_tokens
2
cache_read_tokens22
cache_creation_tokens2
cost_usd	!Õ]K»=K?2
cost_usd_microsø2
duration_ms¨2

request_id

req_00052
speed
normal2"
query_source
repl_main_thread2
effort
high2
mcp_server.name
custom2
mcp_tool.name
customY@~#gﬂ´Í