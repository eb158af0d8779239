
‰
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
2.1.197
+
 com.anthropic.claude_code.events2.1.197í	@/nå«ê*
claude_code.user_prompt2
user.id
user-124

session.id&
$987667d6-c276-4378-8da3-ed7464dcd6142!
terminal.type
xterm-256color2

event.name
user_prompt2-
event.timestamp
2026-11-23T12:20:03.345Z2
event.sequence23
	prompt.id&
$ae1e5903-5e9c-49bb-adf3-2a7c04843c202
prompt_length
222"
prompt
[[A3]] What did I ask?Y@/nå«ê