// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_3/types"
	"k8s.io/utils/ptr"
)

// ignition renders a node for Ignition. Specification 3.3.0 is the first that Flatcar reads (since
// 3185.0.0), and later versions read it too.
func ignition(n *node) ([]byte, error) {
	config := types.Config{Ignition: types.Ignition{Version: types.MaxVersion.String()}}
	config.Storage.Files = append(config.Storage.Files, ignitionFile(file{path: "/etc/hostname", content: n.hostname + "\n"}))
	for _, f := range n.files {
		config.Storage.Files = append(config.Storage.Files, ignitionFile(f))
	}
	for _, u := range n.units {
		unit := types.Unit{Name: u.name, Contents: ptr.To(u.content)}
		if u.name == bootstrapUnit {
			unit.Enabled = ptr.To(true)
		}
		config.Systemd.Units = append(config.Systemd.Units, unit)
	}
	if len(n.keys) > 0 { // the default user of Flatcar and CoreOS
		config.Passwd.Users = append(config.Passwd.Users, types.PasswdUser{Name: "core", SSHAuthorizedKeys: ignitionKeys(n.keys)})
	}
	for _, u := range n.users {
		config.Passwd.Users = append(config.Passwd.Users, types.PasswdUser{Name: u.Name, SSHAuthorizedKeys: ignitionKeys(u.SSHAuthorizedKeys)})
	}
	out, err := json.Marshal(config)
	if err != nil {
		return nil, errors.New("writing the Ignition config as JSON failed")
	}
	return out, nil
}

func ignitionKeys(keys []string) []types.SSHAuthorizedKey {
	out := make([]types.SSHAuthorizedKey, len(keys))
	for i, k := range keys {
		out[i] = types.SSHAuthorizedKey(k)
	}
	return out
}

func ignitionFile(f file) types.File {
	mode, _ := strconv.ParseInt(f.mode(), 8, 32) // Validate has parsed it
	out := types.File{Node: types.Node{Path: f.path, Overwrite: ptr.To(true)}}
	out.Mode = ptr.To(int(mode))
	out.Contents.Source = ptr.To("data:;base64," + base64.StdEncoding.EncodeToString([]byte(f.content)))
	if user, group, ok := strings.Cut(f.owner, ":"); ok {
		out.User.Name, out.Group.Name = ptr.To(user), ptr.To(group)
	}
	return out
}
