// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// reserved reports whether a VM's option belongs to Drover. It ignores case, as vSphere does.
func reserved(key string) bool {
	key = strings.ToLower(key)
	for _, ours := range []string{"drover-", "guestinfo.userdata", "guestinfo.metadata", "guestinfo.ignition"} {
		if strings.HasPrefix(key, ours) {
			return true
		}
	}
	return false
}

// isIgnition reports whether the user data is Ignition's, which is JSON. The user data of
// cloud-init never begins like that.
func isIgnition(userData []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(userData), []byte("{")) }

// options returns a machine's options: its tags, what its deletion must know, and the variables of
// cloud-init's VMware data source or of Ignition (its operator notes, "VMware"). In Ignition's
// images, Afterburn reads the metadata, under the same name as cloud-init.
func options(req cloud.Request) ([]types.BaseOptionValue, error) {
	spec := req.Spec.Cloud.VSphere
	metadata, err := metadata(req)
	if err != nil {
		return nil, err
	}
	var all []types.BaseOptionValue
	set := func(key, value string) { all = append(all, &types.OptionValue{Key: key, Value: value}) }
	for _, o := range spec.ExtraConfig {
		if reserved(o.Key) {
			return nil, cloud.Invalid("extraConfig: %q is reserved for Drover", cloud.Clip(o.Key, 256))
		}
		set(o.Key, o.Value)
	}
	set(cloud.TagToken, req.Token)
	set(cloud.TagOwnership, req.OwnershipID)
	set(cloud.TagMachine, req.Namespace+"/"+req.Name)
	set(optionHost, label(req.Name))
	if req.FailureDomain != "" {
		set(optionDomain, req.FailureDomain)
	}
	if spec.AntiAffinityGroup != "" {
		set(optionGroup, spec.AntiAffinityGroup)
	}
	if spec.HardwareVersion != "" {
		set(optionHardware, spec.HardwareVersion)
	}
	wait := cmp.Or(spec.GuestShutdownSeconds, 300)
	switch spec.PowerOffMode {
	case infrav1.VSpherePowerOffTrySoft:
		set(optionPowerOff, fmt.Sprintf("%ds", wait))
	case infrav1.VSpherePowerOffSoft:
		set(optionPowerOff, fmt.Sprintf("%s%ds", softPrefix, wait))
	}
	userData := "userdata"
	if isIgnition(req.UserData) {
		if i := slices.IndexFunc(spec.Networks, configured); i >= 0 {
			return nil, cloud.Invalid("networks[%d]: only name and macAddress can be set with an Ignition configuration, which sets up the network itself", i)
		}
		userData = "ignition.config.data"
	}
	for name, data := range map[string][]byte{userData: req.UserData, "metadata": metadata} {
		text, err := compress(data)
		if err != nil {
			return nil, err
		}
		set("guestinfo."+name, text)
		set("guestinfo."+name+".encoding", "gzip+base64")
	}
	return all, nil
}

// compress returns the data in gzip+base64.
func compress(data []byte) (string, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return "", &cloud.Error{Code: cloud.InvalidSpec, Message: "the user data can't be compressed", Err: err}
	}
	return base64.StdEncoding.EncodeToString(b.Bytes()), nil
}

// metadata returns the data source's metadata, identity and network, as JSON (which is YAML).
func metadata(req cloud.Request) ([]byte, error) {
	data := map[string]any{"instance-id": identityOf(req.Token), "local-hostname": label(req.Name)}
	networks := req.Spec.Cloud.VSphere.Networks
	if len(networks) > 1 || slices.ContainsFunc(networks, configured) { // otherwise cloud-init uses DHCP by default
		ethernets := map[string]any{}
		for i, n := range networks {
			ethernets[fmt.Sprintf("nic%d", i)] = ethernet(n, i, macOf(networks, req.Token, i))
		}
		data["network"] = map[string]any{"version": 2, "ethernets": ethernets}
	}
	text, err := json.Marshal(data)
	if err != nil {
		return nil, &cloud.Error{Code: cloud.InvalidSpec, Message: "the machine's fields can't be encoded", Err: err}
	}
	return text, nil
}

// ethernet returns one adapter in cloud-init's network configuration, version 2. It matches the MAC
// address and sets a name, because only cloud-init's netplan renderer supports anything else. The
// other renderers write files for an adapter that is named like its entry.
func ethernet(n infrav1.VSphereNetwork, adapter int, mac string) map[string]any {
	dhcp4 := n.DHCP4 == infrav1.FeatureEnabled || n.DHCP4 == "" && len(n.Addresses) == 0
	e := map[string]any{
		"match": map[string]any{"macaddress": mac}, "set-name": fmt.Sprintf("eth%d", adapter),
		"dhcp4": dhcp4, "dhcp6": n.DHCP6 == infrav1.FeatureEnabled,
	}
	if len(n.Addresses) > 0 {
		e["addresses"] = n.Addresses
	}
	if n.MTU > 0 {
		e["mtu"] = n.MTU
	}
	nameservers := map[string]any{}
	if len(n.Nameservers) > 0 {
		nameservers["addresses"] = n.Nameservers
	}
	if len(n.SearchDomains) > 0 {
		nameservers["search"] = n.SearchDomains
	}
	if len(nameservers) > 0 {
		e["nameservers"] = nameservers
	}
	// Not as routes: cloud-init's renderer for systemd-networkd turns a route to "::/0" into one to
	// "::/64".
	for key, gateway := range map[string]string{"gateway4": n.Gateway4, "gateway6": n.Gateway6} {
		if gateway != "" {
			e[key] = gateway
		}
	}
	var routes []map[string]any
	for _, r := range n.Routes {
		route := map[string]any{"to": r.To, "via": r.Via}
		if r.Metric > 0 {
			route["metric"] = r.Metric
		}
		routes = append(routes, route)
	}
	if len(routes) > 0 {
		e["routes"] = routes
	}
	return e
}

// configured reports whether the adapter needs more than the guest's default, DHCP for IPv4.
func configured(n infrav1.VSphereNetwork) bool {
	return n.DHCP4 == infrav1.FeatureDisabled || n.DHCP6 == infrav1.FeatureEnabled || n.MTU > 0 || n.Gateway4 != "" || n.Gateway6 != "" ||
		len(n.Addresses)+len(n.Nameservers)+len(n.SearchDomains)+len(n.Routes) > 0
}

// macOf returns a MAC address that must be known before the VM exists, "" for vCenter's choice.
func macOf(networks []infrav1.VSphereNetwork, token string, adapter int) string {
	switch own := networks[adapter].MACAddress; {
	case own != "":
		return own
	case len(networks) > 1 || configured(networks[adapter]): // the guest matches the adapter by it
		return mac(token, adapter)
	}
	return ""
}

// mac returns a locally administered MAC address. It is derived from the token, so that user data
// and VM agree.
func mac(token string, adapter int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", token, adapter))
	return fmt.Sprintf("02:%02x:%02x:%02x:%02x:%02x", sum[0], sum[1], sum[2], sum[3], sum[4])
}
