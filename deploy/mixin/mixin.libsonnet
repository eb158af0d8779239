// The rules and the dashboards of agentgauge as a monitoring mixin: import it and override `_config`.
local prometheus = importstr '../prometheus/agentgauge.rules.yml';

{
  _config+:: {
    // Where people reach the page: links in alerts begin with it.
    publicUrl: 'http://127.0.0.1:9464',
  },

  local groups = std.parseYaml(std.strReplace(prometheus, 'http://127.0.0.1:9464', std.rstripChars($._config.publicUrl, '/'))).groups,
  local only(kind) = [
    group { rules: [rule for rule in group.rules if std.objectHas(rule, kind)] }
    for group in groups
    if std.length([rule for rule in group.rules if std.objectHas(rule, kind)]) > 0
  ],

  prometheusAlerts+:: { groups+: only('alert') },
  prometheusRules+:: { groups+: only('record') },

  grafanaDashboards+:: {
    'agentgauge-agent.json': import '../grafana/agentgauge-agent.json',
    'agentgauge-fleet.json': import '../grafana/agentgauge-fleet.json',
    'agentgauge-loops.json': import '../grafana/agentgauge-loops.json',
    'agentgauge-self.json': import '../grafana/agentgauge-self.json',
  },
}
