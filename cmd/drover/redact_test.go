// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestRedact tests that no text of a user's stays in an object, and that what helps does.
// test/integration plants secrets in a real API server.
func TestRedact(t *testing.T) {
	t.Parallel()
	const marked = "HUSH-7c21"
	o := map[string]any{}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(`
apiVersion: example.cluster.x-k8s.io/v1
kind: Example
metadata:
  name: shown-name
  labels: {pool: shown-label}
  managedFields: [{fieldsV1: MARK}]
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: MARK
    example.com/password: MARK
    evildrover.io/note: MARK
    drover.io/freeze: shown-annotation
    topology.cluster.x-k8s.io/note: shown-too
spec:
  files:
  - {path: shown-path, content: MARK}
  - {path: other, contents: {inline: MARK}}
  preKubeletCommands: [MARK]
  preKubeadmCommands: [MARK]
  ignition: {containerLinuxConfig: {additionalConfig: MARK}}
  kubelet: {configuration: {maxPods: MARK}, maxPods: 110}
  proxy: {httpProxy: "http://me:MARK@example.com"}
  endpoint: https://me:MARK@shown-host
  env: [{name: shown-variable, value: MARK}]
  topology: {variables: [{name: a, value: {b: MARK}}]}
  external: {driver: shown-driver, parameters: {any: [MARK]}}
  openstack: {metadata: {any: MARK}}
  users: [{name: shown-user, passwd: MARK}]
  creation: {token: shown-token}
  discovery: {token: MARK}
  template:
    metadata: {labels: {a: shown-inner}, annotations: {example.com/a: MARK}}
status:
  conditions: [{type: Ready, message: "shown-message: Bearer MARK, {\"password\": \"MARK\"}"}]
data: {any: MARK}
`, "MARK", marked)), &o); err != nil {
		t.Fatal(err)
	}
	redactObject(o)
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	if i := strings.Index(string(data), marked); i >= 0 {
		t.Errorf("a secret stays: …%s", data[max(0, i-80):i+len(marked)])
	}
	if !strings.Contains(string(data), "https://"+redacted+"@shown-host") {
		t.Error("a URL does not show where its password was")
	}
	for _, want := range []string{"name", "label", "annotation", "too", "path", "host", "variable", "driver", "user", "token", "inner",
		"message"} {
		if !strings.Contains(string(data), "shown-"+want) {
			t.Errorf("shown-%s is not shown", want)
		}
	}
}
