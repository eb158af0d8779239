
—
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
2.1.330«
+
 com.anthropic.claude_code.events2.1.330û	€FÆr6­ê*
claude_code.user_prompt2
user.id
user-124

session.id&
$342788bd-a292-4892-a159-0daca8d3871d2"
anthropic.provider

firstParty2
anthropic.custom_base_url2!
terminal.type
xterm-256color2

event.name
user_prompt2-
event.timestamp
2026-11-23T12:44:10.826Z2
event.sequence23
	prompt.id&
$f286e434-316f-403c-8ca5-380fdcaf01672
prompt_length
292
prompt

<REDACTED>2
prompt_text

<REDACTED>26
message.uuid&
$00000000-0000-4000-8000-000000000000Y€FÆr6­ê