// SPDX-License-Identifier: Apache-2.0

package render

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
)

// Where a machine fetches what its user data has no room for: a Secret of the workload cluster, in
// kube-system, which its bootstrap token alone may read.
const (
	// FilesKey is the Secret's only key: the files of the spec, as a packed tar archive. They fit:
	// a Secret holds 1 MiB, and a spec with what it takes from Secrets a quarter of that.
	FilesKey = "files"

	filesSecretPrefix = "drover-files-"
	// filesConfigPath holds curl's configuration, with the token. It is there as long as the files
	// are not.
	filesConfigPath = "/etc/kubernetes/drover-files.conf"
)

// FilesSecretName is the Secret's name, for a token of that ID.
func FilesSecretName(tokenID string) string { return filesSecretPrefix + tokenID }

// Split renders user data without the files of the spec, which the machine fetches from the
// cluster's API server before anything is installed, and returns the files beside it. They are the
// same bytes for the same input, and the user data hold their SHA-256.
func Split(in Input) (userData, files []byte, err error) {
	switch {
	case FormatOf(in.Spec) == bootstrapv1.FormatIgnition:
		return nil, nil, errors.New("a machine set up by Ignition can't fetch files from the API server: shorten them, or put them into the image")
	case len(in.Spec.Files) == 0:
		return nil, nil, errors.New("there are no files that could be fetched later: shorten the commands")
	}
	if err := in.check(); err != nil {
		return nil, nil, err
	}
	if files, err = tarOf(userFiles(in)); err != nil {
		return nil, nil, err
	}
	userData, err = userDataOf(in, files)
	return userData, files, err
}

// tarOf packs files. Where an owner is not known on the machine, tar takes root.
func tarOf(files []file) ([]byte, error) {
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	w := tar.NewWriter(packed)
	for _, f := range files {
		mode, err := strconv.ParseInt(f.mode(), 8, 32)
		if err != nil {
			return nil, errors.New("a file's permissions are not octal") // by the checks before, they are
		}
		user, group, _ := strings.Cut(f.owner, ":")
		header := &tar.Header{
			Name: strings.TrimPrefix(f.path, "/"), Mode: mode, Size: int64(len(f.content)), Uname: user, Gname: group, Format: tar.FormatPAX,
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("packing %s: %w", shorten(f.path), err)
		}
		if _, err := w.Write([]byte(f.content)); err != nil {
			return nil, fmt.Errorf("packing %s: %w", shorten(f.path), err)
		}
	}
	if err := errors.Join(w.Close(), packed.Close()); err != nil {
		return nil, fmt.Errorf("packing the files: %w", err)
	}
	return out.Bytes(), nil
}

// fetchFiles has the script fetch them, over TLS that is verified with the cluster's CA and nothing
// else, and compare what came with the sum. The token is in no program's arguments.
func (n *node) fetchFiles(in Input, files []byte) {
	id, _, _ := strings.Cut(in.Token, ".")
	n.add(file{path: filesConfigPath, permissions: "0600", content: strings.Join([]string{
		"fail", "silent", "show-error", "globoff", "connect-timeout = 20", "max-time = 300",
		"url = " + quoteForCurl(in.Server+"/api/v1/namespaces/kube-system/secrets/"+FilesSecretName(id)),
		"header = " + quoteForCurl("Authorization: Bearer "+in.Token),
		"header = " + quoteForCurl("Accept: application/json"),
		"cacert = " + quoteForCurl(CAPath),
	}, "\n") + "\n"})
	if joinsByKubeadm(in.Spec) { // which brings its own later
		n.add(file{path: CAPath, content: string(in.CA)})
	}
	if s := systemOf(in.Spec); Installs(in.Spec) && s.packages != nil {
		n.tools(s, "Installing the tools that fetching files needs", "curl", "tar")
	}
	sum := sha256.Sum256(files)
	n.do("Fetching the files", fmt.Sprintf(fetchFilesText, hex.EncodeToString(sum[:])))
}

// quoteForCurl makes one value of s in curl's configuration, which knows these two escapes. A
// line's end is in none of the values.
func quoteForCurl(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

const fetchFilesText = `fetch_files() (
  umask 077
  mkdir -p ` + downloads + `
  cd ` + downloads + ` || exit 1
  why=$(curl -K ` + filesConfigPath + ` -o files.json 2>&1) || {
    say "The files could not be fetched from the cluster's API server: $(echo "$why" | head -n 1)"
    exit 1
  }
  sed -n 's/^.*"` + FilesKey + `": *"\([A-Za-z0-9+/=]*\)".*$/\1/p' files.json | base64 -d >files.tgz
  rm -f files.json
  if ! echo "%s  files.tgz" | sha256sum -c --status; then
    say "What the cluster's API server has for this machine has not the SHA-256 of its files"
    exit 1
  fi
)
if [ -f ` + filesConfigPath + ` ]; then
  retry fetch_files
  tar -xzpmf ` + downloads + `files.tgz -C /
  rm -f ` + downloads + `files.tgz ` + filesConfigPath + `
fi`
