// SPDX-License-Identifier: Apache-2.0

package userdata

import (
	"errors"
	"fmt"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_3"
	"github.com/coreos/ignition/v2/config/v3_3/types"
	"github.com/vincent-petithory/dataurl"
	"k8s.io/utils/ptr"
)

// unitFolder is where Ignition writes units.
const unitFolder = "/etc/systemd/system/"

// isIgnition reports whether text is Ignition's JSON: no cloud-init format begins with a brace.
func isIgnition(text string) bool { return strings.HasPrefix(strings.TrimLeft(text, space), "{") }

// parseIgnition reads files and units with Ignition's own parser. An image with Ignition starts the
// enabled units.
func parseIgnition(data []byte) (Machine, error) {
	m := Machine{Files: map[string]File{}}
	config, _, err := v3_3.ParseCompatibleVersion(data)
	if err != nil { // a machine with an invalid config does not start; the parser's error may repeat secrets
		return m, errors.New("the Ignition config is not valid")
	}
	for _, f := range config.Storage.Files {
		if err := m.ignitionFile(f); err != nil {
			return m, fmt.Errorf("the Ignition config's file %s: %w", f.Path, err)
		}
	}
	m.Hostname = strings.TrimSpace(string(m.Files["/etc/hostname"].Content))
	for _, u := range config.Systemd.Units {
		if u.Contents != nil {
			m.Files[unitFolder+u.Name] = File{Content: []byte(*u.Contents), Permissions: "0644"}
		}
		if ptr.Deref(u.Enabled, false) {
			m.Commands = append(m.Commands, "systemctl start "+quote(u.Name))
		}
	}
	return m, nil
}

func (m *Machine) ignitionFile(f types.File) error {
	content, err := dataurl.DecodeString(ptr.Deref(f.Contents.Source, "data:,"))
	if err != nil {
		return errors.New("only data URLs are simulated")
	}
	if ptr.Deref(f.Contents.Compression, "") == "gzip" {
		if content.Data, err = gunzip(content.Data); err != nil {
			return err
		}
	}
	m.Files[f.Path] = File{Content: content.Data, Permissions: fmt.Sprintf("%04o", ptr.Deref(f.Mode, 0o644))}
	return nil
}
