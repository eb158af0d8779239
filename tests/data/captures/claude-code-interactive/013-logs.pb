
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
 com.anthropic.claude_code.events2.1.197Ó	ÀéÄæ«ê*
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
2026-11-23T12:20:09.095Z2
event.sequence 23
	prompt.id&
$ae1e5903-5e9c-49bb-adf3-2a7c04843c202
model
claude-opus-4-82
input_tokensn2
output_tokens2
cache_read_tokensd2
cache_creation_tokens
2
cost_usd	!St$—ÿP?2
cost_usd_micros2
duration_ms²2

request_id

req_00102
speed
normal2"
query_source
repl_main_thread2
effort
highYÀéÄæ«êä	@›Èæ«ê* 
claude_code.assistant_response2
user.id
user-124

session.id&
$987667d6-c276-4378-8da3-ed7464dcd6142!
terminal.type
xterm-256color2"

event.name
assistant_response2-
event.timestamp
2026-11-23T12:20:09.156Z2
event.sequence!23
	prompt.id&
$ae1e5903-5e9c-49bb-adf3-2a7c04843c202
response_length#21
response%
#You asked about notes and an order.2

request_id

req_00102
model
claude-opus-4-82"
query_source
repl_main_threadY@›Èæ«ê