// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/base64"
	"errors"
	"strings"

	"sigs.k8s.io/yaml"
)

// Header starts a cloud-config. cloud-init first fills in instance data, then parses the rest as
// its configuration.
const Header = "## template: jinja\n#cloud-config\n"

// The parts of cloud-config that Drover writes
// (https://docs.cloud-init.io/en/latest/reference/modules.html).
type cloudInit struct {
	// Hostname is empty if the host keeps the cloud's name.
	Hostname          string      `json:"hostname,omitempty"`
	SSHAuthorizedKeys []string    `json:"ssh_authorized_keys,omitempty"`
	Users             []any       `json:"users,omitempty"`
	WriteFiles        []writeFile `json:"write_files"`
	RunCmd            [][]string  `json:"runcmd"`
}

type cloudInitUser struct {
	Name              string   `json:"name"`
	Shell             string   `json:"shell"`
	LockPasswd        bool     `json:"lock_passwd"`
	SSHAuthorizedKeys []string `json:"ssh_authorized_keys,omitempty"`
}

type writeFile struct {
	Path        string `json:"path"`
	Content     string `json:"content"`
	Encoding    string `json:"encoding,omitempty"`
	Permissions string `json:"permissions"`
}

// cloudConfig renders a node for cloud-init. variables is the expected number of its variables.
func cloudConfig(n *node, variables int) ([]byte, error) {
	config := cloudInit{
		Hostname: n.hostname, SSHAuthorizedKeys: n.keys,
		RunCmd: [][]string{{"systemctl", "daemon-reload"}, {"systemctl", "enable", "--now", bootstrapUnit}},
	}
	if len(n.users) > 0 {
		config.Users = []any{"default"} // the image's default user, which a list would remove
	}
	for _, u := range n.users {
		config.Users = append(config.Users, cloudInitUser{Name: u.Name, Shell: "/bin/bash", LockPasswd: true,
			SSHAuthorizedKeys: u.SSHAuthorizedKeys})
	}
	for _, u := range n.units {
		config.WriteFiles = append(config.WriteFiles, encoded(file{path: unitFolder + u.name, content: u.content}))
	}
	for _, f := range n.files {
		config.WriteFiles = append(config.WriteFiles, encoded(f))
	}
	body, err := yaml.Marshal(config)
	if err != nil {
		return nil, errors.New("writing the cloud-config as YAML failed")
	}
	out := Header + string(body)
	if strings.Count(out, "{{") != variables || strings.Contains(out, "{%") || strings.Contains(out, "{#") {
		return nil, errors.New("the cloud-config would hold jinja that was not meant") // the earlier checks prevent this
	}
	return []byte(out), nil
}

// encoded leaves out the owner, which the script sets: cloud-init writes files before it makes
// users. Since 21.4 it can defer a file, but not on images whose cloud.cfg lacks
// write_files_deferred, such as https://github.com/oracle/oracle-linux/issues/156. It would leave
// out this file and all later ones, and the machine would become a Node without them.
func encoded(f file) writeFile {
	w := writeFile{Path: f.path, Permissions: f.mode()}
	if f.template {
		w.Content = f.content
	} else {
		w.Encoding, w.Content = "b64", base64.StdEncoding.EncodeToString([]byte(f.content))
	}
	return w
}
