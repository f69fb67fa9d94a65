// SPDX-License-Identifier: Apache-2.0

package gcpstub

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"time"
)

// fingerprint is that of labels or network tags. Two of the same content have the same.
func fingerprint(of any) string {
	text, err := json.Marshal(of)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(text)
	return base64.StdEncoding.EncodeToString(sum[:8])
}

// setOn is "instances.setLabels" and "instances.setTags".
func (c *Cloud) setOn(in call) (any, *failure) {
	i, fail := c.find(in)
	if fail != nil {
		return nil, fail
	}
	var request map[string]any
	if err := json.Unmarshal(in.body, &request); err != nil {
		return nil, refuse(http.StatusBadRequest, "parseError", "Parse Error")
	}
	is, given, kind := fingerprint(i.model["labels"]), request["labelFingerprint"], "setLabels"
	if in.action == "/setTags" {
		is, given, kind = fingerprint(list(object(i.model, "tags"), "items")), request["fingerprint"], "setTags"
	}
	if given != is {
		return nil, refuse(http.StatusPreconditionFailed, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
	}
	if kind == "setTags" {
		i.model["tags"] = map[string]any{"items": request["items"]}
	} else if labels := object(request, "labels"); len(labels) > 0 {
		i.model["labels"] = labels
	} else {
		delete(i.model, "labels")
	}
	now := time.Now()
	op := &operation{id: c.number(), kind: kind, zone: i.zone, request: in.is("requestId"), collection: "instances", target: i.id,
		name: i.name, started: now, ends: now.Add(c.options.Parts)}
	c.operations = append(c.operations, op)
	return op.model(c.base()), nil
}

// LaunchWith makes an instance without the driver, as another system does: with labels, network
// tags, and a disk that Compute Engine deletes with it.
func (c *Cloud) LaunchWith(zone, name string, labels map[string]string, tags ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own, items := map[string]any{}, []any{}
	for key, value := range labels {
		own[key] = value
	}
	for _, tag := range tags {
		items = append(items, tag)
	}
	i := &instance{zone: zone, name: name, id: c.number(), made: time.Now(), started: time.Now(), ip: "10.9.0.4", model: map[string]any{
		"machineType": c.base() + "/zones/" + zone + "/machineTypes/e2-standard-2", "tags": map[string]any{"items": items},
		"disks":             []any{map[string]any{"boot": true, "autoDelete": true, "type": "PERSISTENT"}},
		"networkInterfaces": []any{map[string]any{"subnetwork": c.base() + "/regions/" + Region + "/subnetworks/" + Subnet}},
	}}
	if len(own) > 0 {
		i.model["labels"] = own
	}
	c.instances[zone+"/"+name] = i
	c.disks[zone+"/"+name] = &disk{zone: zone, name: name, id: c.number(), made: i.made, owner: i, cascades: true}
}
