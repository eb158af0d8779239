
²
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
2.1.197Æ
+
 com.anthropic.claude_code.events2.1.197–	À8.¿â«ê*
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
2026-11-23T12:19:51.819Z2
event.sequence23
	prompt.id&
$b04a7ef0-313e-4b55-9fbb-39c4c49010592
prompt_length
82
prompt

/compact2
command_name	
compact2
command_source	
builtinYÀ8.¿â«ê