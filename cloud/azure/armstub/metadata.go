// SPDX-License-Identifier: Apache-2.0

package armstub

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"html/template"
	"net/http"
	"strings"
)

// Where a guest finds its metadata service and the service of Azure's agent, at port 80, and the
// chassis asset tag by which it recognizes Azure.
const (
	MetadataAddress = "169.254.169.254"
	WireAddress     = "168.63.129.16"
	ChassisTag      = "7783-7084-3265-9085-8269-3286-77"
)

// VMID is the ID of every machine, which its firmware shows, too.
const VMID = "11111111-2222-3333-4444-555555555555"

// provisioning is the document as Azure's agent and cloud-init's tests have it.
var provisioning = template.Must(template.New("").Parse(
	`<Environment xmlns="http://schemas.dmtf.org/ovf/environment/1" xmlns:wa="http://schemas.microsoft.com/windowsazure">
<wa:ProvisioningSection><wa:Version>1.0</wa:Version>
<wa:LinuxProvisioningConfigurationSet><wa:ConfigurationSetType>LinuxProvisioningConfiguration</wa:ConfigurationSetType>
<wa:UserName>{{.AdminUsername}}</wa:UserName><wa:DisableSshPasswordAuthentication>true</wa:DisableSshPasswordAuthentication>
<wa:HostName>{{.ComputerName}}</wa:HostName><wa:CustomData>{{.CustomData}}</wa:CustomData></wa:LinuxProvisioningConfigurationSet></wa:ProvisioningSection>
<wa:PlatformSettingsSection><wa:Version>1.0</wa:Version><wa:PlatformSettings>
<wa:PreprovisionedVm>false</wa:PreprovisionedVm></wa:PlatformSettings></wa:PlatformSettingsSection></Environment>
`))

// ProvisioningDisk returns the content of ovf-env.xml, the only file on the guest's provisioning
// disk.
func (g Guest) ProvisioningDisk() ([]byte, error) {
	var out bytes.Buffer
	err := provisioning.Execute(&out, g)
	return out.Bytes(), err
}

// Metadata is the guest's metadata service. Azure writes the resource group as it likes. mac is the
// address of the network card, without colons.
func (g Guest) Metadata(mac string) http.Handler {
	keys := []any{}
	for _, key := range g.SSHKeys {
		keys = append(keys, map[string]any{"keyData": key, "path": "/home/" + g.AdminUsername + "/.ssh/authorized_keys"})
	}
	document := map[string]any{
		"compute": map[string]any{
			"name": g.Name, "location": Location, "zone": g.Zone, "platformFaultDomain": "0", "azEnvironment": "AzurePublicCloud",
			"subscriptionId": Subscription, "resourceGroupName": strings.ToUpper(g.Group), "vmId": VMID, "publicKeys": keys,
			"osProfile": map[string]any{"computerName": g.ComputerName, "adminUsername": g.AdminUsername, "disablePasswordAuthentication": "true"},
		},
		"network": map[string]any{"interface": []any{map[string]any{"macAddress": mac,
			"ipv4": map[string]any{"ipAddress": []any{map[string]any{"privateIpAddress": g.IP, "publicIpAddress": ""}}}}}},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Metadata") != "true" || r.URL.Path != "/metadata/instance" || r.FormValue("api-version") == "" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(document)
	})
}

// Wire is the service of Azure's agent, to which a guest reports that it is provisioned. report
// gets what it says: "Ready" or "NotReady".
func Wire(report func(state string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.FormValue("comp") {
		case "GET goalstate":
			_, _ = fmt.Fprintf(w, `<?xml version="1.0" encoding="utf-8"?>
<GoalState><Version>2012-11-30</Version><Incarnation>1</Incarnation><Container><ContainerId>%s</ContainerId>
<RoleInstanceList><RoleInstance><InstanceId>%[1]s</InstanceId></RoleInstance></RoleInstanceList></Container></GoalState>`, VMID)
		case "POST health":
			var health struct {
				State string `xml:"Container>RoleInstanceList>Role>Health>State"`
			}
			if err := xml.NewDecoder(r.Body).Decode(&health); err != nil {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			report(health.State)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})
}
