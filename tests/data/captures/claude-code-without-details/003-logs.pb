
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
 com.anthropic.claude_code.events2.1.330û	@*§s.­ê*
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
2026-11-23T12:43:36.481Z2
event.sequence23
	prompt.id&
$5d01815a-9a3a-41d4-a460-6d7fe89a84c72
prompt_length
292
prompt

<REDACTED>2
prompt_text

<REDACTED>26
message.uuid&
$00000000-0000-4000-8000-000000000000Y@*§s.­ê