
¨
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
2.1.197¿
+
 com.anthropic.claude_code.events2.1.197ê	@'≈Ë´Í*
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
2026-11-23T12:20:17.689Z2
event.sequence"23
	prompt.id&
$c9af5ad3-5a02-4a47-b146-a05ee20233c02
prompt_length
52
prompt
/exit2
command_name
exit2
command_source	
builtinY@'≈Ë´Í