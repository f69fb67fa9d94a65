// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_3/types"
	"k8s.io/utils/ptr"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
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
	config.Passwd.Users = ignitionUsers(n)
	out, err := json.Marshal(config)
	if err != nil {
		return nil, errors.New("writing the Ignition config as JSON failed")
	}
	return out, nil
}

// ignitionUsers returns each user, and each key of one, once: Ignition refuses what is there twice
// (https://github.com/coreos/ignition/blob/v2.24.0/config/validate/validate.go, ValidateDups).
func ignitionUsers(n *node) []types.PasswdUser {
	users := n.users
	if len(n.keys) > 0 { // of the default user of Flatcar and CoreOS
		users = append([]bootstrapv1.User{{Name: "core", SSHAuthorizedKeys: n.keys}}, users...)
	}
	var all []types.PasswdUser
	for _, u := range users {
		i := slices.IndexFunc(all, func(known types.PasswdUser) bool { return known.Name == u.Name })
		if i < 0 {
			i, all = len(all), append(all, types.PasswdUser{Name: u.Name})
		}
		for _, key := range u.SSHAuthorizedKeys {
			if key := types.SSHAuthorizedKey(key); !slices.Contains(all[i].SSHAuthorizedKeys, key) {
				all[i].SSHAuthorizedKeys = append(all[i].SSHAuthorizedKeys, key)
			}
		}
	}
	return all
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
