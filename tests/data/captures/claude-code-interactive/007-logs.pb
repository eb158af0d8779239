
ç

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
2.1.197°	
+
 com.anthropic.claude_code.events2.1.197Ì	@õ…ﬂ´Í*
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
2026-11-23T12:19:39.109Z2
event.sequence23
	prompt.id&
$382e246f-0c8b-41b6-bf85-9b0f577790422
decision
accept2
source
config2
	tool_name
Bash2
tool_use_id

toolu_00602Y
tool_parametersF
D{"bash_command":"ls","full_command":"ls","description":"list files"}Y@õ…ﬂ´ÍÅ	Äw≈—ﬂ´Í*
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
2026-11-23T12:19:39.246Z2
event.sequence23
	prompt.id&
$382e246f-0c8b-41b6-bf85-9b0f577790422
model
claude-opus-4-82
input_tokensj2
output_tokens2
cache_read_tokens<2
cache_creation_tokens2
cost_usd	!û{óL?2
cost_usd_microsË2
duration_msì2

request_id

req_00062
speed
normal2/
query_source
agent:builtin:general-purpose2
effort
high2

agent.name
general-purposeYÄw≈—ﬂ´Í