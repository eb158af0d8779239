
Ó	
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
2.1.197ç
+
 com.anthropic.claude_code.events2.1.197Ó	ÀT‰]Ü«ê*
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
2026-11-23T12:19:24.411Z2
event.sequence23
	prompt.id&
$f034f012-b753-4d67-a7ff-27092a31402b2
model
claude-opus-4-82
input_tokensg2
output_tokens2
cache_read_tokens2
cache_creation_tokens2
cost_usd	!E¦aøˆH?2
cost_usd_microsí2
duration_ms—2

request_id

req_00032
speed
normal2"
query_source
repl_main_thread2
effort
highYÀT‰]Ü«êá	ÀT‰]Ü«ê* 
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
2026-11-23T12:19:24.411Z2
event.sequence23
	prompt.id&
$f034f012-b753-4d67-a7ff-27092a31402b2
response_length 2.
response"
 Invoices are kept for ten years.2

request_id

req_00032
model
claude-opus-4-82"
query_source
repl_main_threadYÀT‰]Ü«ê