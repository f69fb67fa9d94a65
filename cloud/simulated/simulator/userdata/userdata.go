// SPDX-License-Identifier: Apache-2.0

// Package userdata parses user data as cloud-init and Ignition do, as far as nodes use it:
// cloud-config with or without Jinja, hostname, write_files, bootcmd and runcmd; Ignition's files
// and units. It changes nothing: it returns what a machine would contain.
package userdata

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"sigs.k8s.io/yaml"
)

// maxUnpacked is the maximum decompressed size in bytes.
const maxUnpacked = 8 << 20

// InstanceData holds the values for templates: cloud-init's "v1" variables, and the host's name
// with its domain.
type InstanceData struct {
	InstanceID, AvailabilityZone, Region, LocalHostname, CloudName string
}

// Machine is the result of the user data.
type Machine struct {
	// Hostname that the user data sets, or "".
	Hostname string
	// Files by absolute path.
	Files map[string]File
	// Commands are shell command lines, in order.
	Commands []string
	// Warnings that cloud-init would log without stopping.
	Warnings []string
}

// File is a file on the machine.
type File struct {
	Content     []byte
	Permissions string
}

// config is the supported part of cloud-config.
type config struct {
	Hostname   string      `json:"hostname"`
	FQDN       string      `json:"fqdn"`
	WriteFiles []writeFile `json:"write_files"`
	BootCmd    []any       `json:"bootcmd"`
	RunCmd     []any       `json:"runcmd"`
}

type writeFile struct {
	Path        string `json:"path"`
	Content     string `json:"content"`
	Encoding    string `json:"encoding"`
	Permissions any    `json:"permissions"`
	Append      bool   `json:"append"`
}

// Parse parses user data of either format. An error means that the user data would have no effect.
func Parse(data []byte, vars InstanceData) (Machine, error) {
	m := Machine{Files: map[string]File{}}
	data, err := unpackIfPacked(data)
	if err != nil {
		return m, err
	}
	text := string(data)
	if isIgnition(text) {
		return parseIgnition(data)
	}
	if rest, ok := cutTemplateHeader(text); ok {
		if text, m.Warnings, err = render(rest, vars); err != nil {
			return m, fmt.Errorf("rendering the Jinja template: %w", err)
		}
	}
	text = strings.TrimLeft(text, "\r\n\t ")
	if first, _, _ := strings.Cut(text, "\n"); strings.TrimRight(first, "\r\t ") != "#cloud-config" {
		return m, errors.New("the user data is no cloud-config: the first line is not #cloud-config")
	}
	var c config
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		// The parser's error may repeat the text, which may hold secrets.
		return m, errors.New("the cloud-config is not the YAML of one")
	}
	m.apply(c)
	return m, nil
}

func (m *Machine) apply(c config) {
	m.Hostname = c.Hostname
	if m.Hostname == "" {
		m.Hostname, _, _ = strings.Cut(c.FQDN, ".")
	}
	// bootcmd runs before files are written. None of its simulated effects depends on the order.
	m.addCommands("bootcmd", c.BootCmd)
	for n, f := range c.WriteFiles {
		if err := m.write(f); err != nil {
			m.warn("write_files[%d]: %v", n, err)
		}
	}
	m.addCommands("runcmd", c.RunCmd)
}

func (m *Machine) warn(format string, args ...any) {
	m.Warnings = append(m.Warnings, fmt.Sprintf(format, args...))
}

func (m *Machine) write(f writeFile) error {
	if !path.IsAbs(f.Path) || strings.ContainsRune(f.Path, 0) {
		return fmt.Errorf("the path is not absolute")
	}
	content, err := decode(f.Content, f.Encoding)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	name := path.Clean(f.Path)
	if f.Append {
		content = append(bytes.Clone(m.Files[name].Content), content...)
	}
	permissions := "0644"
	switch p := f.Permissions.(type) {
	case nil:
	case string:
		permissions = p
	default:
		// An unquoted 0640 is the octal number 416 in Python, which cloud-init uses as it is. This
		// is for display only.
		permissions = fmt.Sprint(p)
	}
	m.Files[name] = File{Content: content, Permissions: permissions}
	return nil
}

// decode decodes write_files' content. As in cloud-init, an unknown encoding means plain text.
func decode(content, encoding string) ([]byte, error) {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "b64", "base64":
		return unbase64(content)
	case "gz", "gzip":
		return gunzip([]byte(content))
	case "gz+b64", "gz+base64", "gzip+b64", "gzip+base64":
		packed, err := unbase64(content)
		if err != nil {
			return nil, err
		}
		return gunzip(packed)
	}
	return []byte(content), nil
}

func unbase64(s string) ([]byte, error) {
	out, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		return nil, errors.New("the content is not base64")
	}
	return out, nil
}

func gunzip(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, errors.New("the content is not gzip")
	}
	out, err := io.ReadAll(io.LimitReader(r, maxUnpacked+1))
	switch {
	case err != nil:
		return nil, errors.New("the gzip content is broken")
	case len(out) > maxUnpacked:
		return nil, fmt.Errorf("the content unpacks to more than %d MiB", maxUnpacked>>20)
	}
	return out, nil
}

func unpackIfPacked(data []byte) ([]byte, error) {
	if !bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		return data, nil
	}
	return gunzip(data)
}

// addCommands adds strings, which are shell command lines, and lists, which are one command with
// its arguments.
func (m *Machine) addCommands(key string, items []any) {
	for n, item := range items {
		switch c := item.(type) {
		case string:
			m.Commands = append(m.Commands, c)
		case []any:
			words := make([]string, len(c))
			for i, w := range c {
				words[i] = quote(fmt.Sprint(w))
			}
			m.Commands = append(m.Commands, strings.Join(words, " "))
		default:
			m.warn("%s[%d] is neither a string nor a list", key, n)
		}
	}
}

// quote quotes s as one shell word.
func quote(s string) string {
	plain := s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_./=:,@%+", r)
	})
	if plain {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
