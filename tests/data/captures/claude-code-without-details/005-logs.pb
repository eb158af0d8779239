
»
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
2.1.330‹
+
 com.anthropic.claude_code.events2.1.330¨	@ÚI0≠Í*
claude_code.tool_result2
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
tool_result2-
event.timestamp
2026-11-23T12:43:43.169Z2
event.sequence23
	prompt.id&
$5d01815a-9a3a-41d4-a460-6d7fe89a84c72
	tool_name
Bash2
tool_use_id

toolu_00102
success
true2
duration_ms
16022
tool_input_size_bytes
732
tool_result_size_bytes
472

request_id

req_0001Y@ÚI0≠Í