
Ö	
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
2.1.197ê
+
 com.anthropic.claude_code.events2.1.197ñ	À$«I¨¬ê*
claude_code.tool_decision2
user.id
user-124

session.id&
$51fe0fdc-e2b7-4b1c-a673-f649ba37880b2!
terminal.type
xterm-256color2

event.name
tool_decision2-
event.timestamp
2026-11-23T12:34:00.251Z2
event.sequence23
	prompt.id&
$0c59a039-23ea-42b8-93c2-a682166da2f32
decision
accept2
source
config2
	tool_name
Bash2
tool_use_id

toolu_00202]
tool_parametersJ
H{"bash_command":"sleep","full_command":"sleep 100","description":"wait"}YÀ$«I¨¬êÆ	@q6j¨¬ê*
claude_code.api_request2
user.id
user-124

session.id&
$51fe0fdc-e2b7-4b1c-a673-f649ba37880b2!
terminal.type
xterm-256color2

event.name
api_request2-
event.timestamp
2026-11-23T12:34:00.797Z2
event.sequence23
	prompt.id&
$0c59a039-23ea-42b8-93c2-a682166da2f32
model
claude-opus-4-82
input_tokensf2
output_tokens2
cache_read_tokens2
cache_creation_tokens2
cost_usd	!eS®ð.G?2
cost_usd_microsÄ2
duration_ms³
2

request_id

req_00022
speed
normal2
query_source
sdk2
effort
highY@q6j¨¬ê