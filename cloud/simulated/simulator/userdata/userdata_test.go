// SPDX-License-Identifier: Apache-2.0

package userdata

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"slices"
	"strings"
	"testing"
)

var vars = InstanceData{InstanceID: "i-1", AvailabilityZone: "sim-1a", Region: "sim-1", LocalHostname: "host-1", CloudName: "simulated"}

func pack(s string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(s))
	_ = w.Close()
	return b.Bytes()
}

func TestParse(t *testing.T) {
	text := `## template: jinja
#cloud-config
hostname: '{{ v1.local_hostname }}'
write_files:
- path: /etc/id
  content: simulated:///{{ v1.availability_zone }}/{{v1.instance_id}}{# gone #} {{ region }}
- path: /etc/name
  content: azure:///{{ ds.meta_data.imds.compute.name }}
- path: /etc/raw
  content: "{% raw %}{{ v1.instance_id }}{% endraw %}"
- path: /etc/b64
  encoding: b64
  content: aGVs
    bG8=
- path: /etc/gz
  encoding: gz+b64
  content: ` + base64.StdEncoding.EncodeToString(pack("packed")) + `
  permissions: '0600'
- path: relative
  content: x
- path: /etc/broken
  encoding: base64
  content: '***'
- {path: /etc/more, content: one}
- {path: /etc/more, content: two, append: true}
- {path: /etc/missing, content: '{{ v1.nothing }}'}
runcmd:
- systemctl enable --now kubelet
- [sh, -c, "echo 'a b'"]
- 7
`
	m, err := Parse([]byte(text), vars)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/etc/id": "simulated:///sim-1a/i-1 sim-1", "/etc/name": "azure:///" + vars.LocalHostname, "/etc/raw": "{{ v1.instance_id }}",
		"/etc/b64": "hello", "/etc/gz": "packed",
		"/etc/more": "onetwo", "/etc/missing": "CI_MISSING_JINJA_VAR/nothing",
	} {
		if got := string(m.Files[path].Content); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
	if m.Files["/etc/gz"].Permissions != "0600" || m.Files["/etc/id"].Permissions != "0644" {
		t.Errorf("permissions: %+v", m.Files)
	}
	if len(m.Files) != 7 {
		t.Errorf("files: %v", m.Files)
	}
	if m.Hostname != "host-1" {
		t.Errorf("hostname %q", m.Hostname)
	}
	if want := []string{"systemctl enable --now kubelet", `sh -c 'echo '\''a b'\'''`}; !slices.Equal(m.Commands, want) {
		t.Errorf("commands %q", m.Commands)
	}
	if len(m.Warnings) != 4 {
		t.Errorf("warnings %q", m.Warnings)
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"empty":               "",
		"script":              "#!/bin/sh\nsystemctl start kubelet\n",
		"no header":           "hostname: a\n",
		"broken YAML":         "#cloud-config\nwrite_files: [\n",
		"not a list":          "#cloud-config\nwrite_files: 7\n",
		"open variable":       "## template: jinja\n#cloud-config\nhostname: {{ v1.x\n",
		"statement":           "## template: jinja\n#cloud-config\n{% if true %}x{% endif %}\n",
		"open raw":            "## template: jinja\n#cloud-config\n{% raw %}x\n",
		"filter":              "## template: jinja\n#cloud-config\nhostname: {{ v1.instance_id|upper }}\n",
		"broken Ignition":     `{"ignition": {"version": "3.3.0"}, "storage": 7}`,
		"Ignition of old":     `{"ignition": {"version": "2.3.0"}}`,
		"Ignition, elsewhere": `{"ignition": {"version": "3.3.0"}, "storage": {"files": [{"path": "/a", "contents": {"source": "https://example.org"}}]}}`,
		"broken gzip":         "\x1f\x8bnothing",
		"template in the way": "\n## template: jinja\n#cloud-config\nhostname: a\n",
	} {
		t.Run(name, func(t *testing.T) {
			if m, err := Parse([]byte(text), vars); err == nil {
				t.Fatalf("taken: %+v", m)
			}
		})
	}
}

func TestWithoutTemplateNothingIsReplaced(t *testing.T) {
	m, err := Parse([]byte("#cloud-config\nhostname: '{{ v1.local_hostname }}'\n"), vars)
	if err != nil || m.Hostname != "{{ v1.local_hostname }}" {
		t.Fatalf("%v %+v", err, m)
	}
}

func TestParseIgnition(t *testing.T) {
	m, err := Parse([]byte(`{"ignition": {"version": "3.2.0"}, "storage": {"files": [
		{"path": "/etc/hostname", "contents": {"source": "data:,node-1%0A"}},
		{"path": "/etc/b64", "mode": 384, "contents": {"source": "data:;base64,aGVsbG8="}},
		{"path": "/etc/gz", "contents": {"compression": "gzip", "source": "data:;base64,`+base64.StdEncoding.EncodeToString(pack("packed"))+`"}},
		{"path": "/etc/empty"}]},
		"systemd": {"units": [{"name": "a.service", "enabled": true, "contents": "[Service]\nExecStart=/bin/true\n"}, {"name": "b.service"}]}}`), vars)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/etc/b64": "hello", "/etc/gz": "packed", "/etc/empty": "",
		"/etc/systemd/system/a.service": "[Service]\nExecStart=/bin/true\n"} {
		if f, ok := m.Files[path]; !ok || string(f.Content) != want {
			t.Errorf("%s: got %q, want %q", path, f.Content, want)
		}
	}
	if m.Hostname != "node-1" || m.Files["/etc/b64"].Permissions != "0600" || len(m.Files) != 5 {
		t.Errorf("%+v", m)
	}
	if want := []string{"systemctl start a.service"}; !slices.Equal(m.Commands, want) {
		t.Errorf("commands %q", m.Commands)
	}
}

func TestRenderTrims(t *testing.T) {
	for text, want := range map[string]string{
		"a {{- region -}} b\n":                     "asim-1b\n",
		"{# gone #}\nx":                            "x",
		"{% raw %}\n{{ x }}{% endraw %}\ny":        "\n{{ x }}y",
		"{%- raw -%} \n{{ x }} {%- endraw -%}\n y": "{{ x }}y",
		"{ {":                               "{ {",
		"100 {{v1.region}}{{ cloud_name }}": "100 sim-1simulated",
	} {
		if got, _, err := render(text, vars); err != nil || got != want {
			t.Errorf("%q: got %q, %v; want %q", text, got, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"#cloud-config\nhostname: a\n",
		"## template: jinja\n#cloud-config\nhostname: {{ v1.local_hostname }}{% raw %}{{ x }}{% endraw %}{# c #}\n",
		"#cloud-config\nwrite_files:\n- {path: /a, content: aGk=, encoding: b64, permissions: 0600}\nruncmd:\n- [a, 1, null]\n- b\n",
		"## template: jinja\n#cloud-config\n{",
		`{"ignition": {"version": "3.3.0"}, "storage": {"files": [{"path": "/a", "contents": {"source": "data:,b"}}]}}`,
	} {
		f.Add([]byte(s))
	}
	f.Add(pack("#cloud-config\nruncmd: [x]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Parse(data, vars)
		if err != nil {
			return
		}
		for path := range m.Files {
			if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
				t.Errorf("file %q", path)
			}
		}
		again, err := Parse(data, vars)
		if err != nil || !slices.Equal(again.Commands, m.Commands) || len(again.Files) != len(m.Files) {
			t.Errorf("read twice, read differently: %v", err)
		}
	})
}

func FuzzRender(f *testing.F) {
	f.Add("a {{ v1.instance_id }} {% raw %}{{{% endraw %} {# x #}")
	f.Add("{{{")
	f.Fuzz(func(t *testing.T, text string) {
		out, _, err := render(text, vars)
		if err == nil && !strings.Contains(text, "{") && out != text {
			t.Errorf("plain text changed: %q → %q", text, out)
		}
	})
}
