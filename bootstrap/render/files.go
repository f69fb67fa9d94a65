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

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// Files that do not fit into the user data are in a Secret of the workload cluster, in kube-system.
// Of Drover's tokens, only the machine's own bootstrap token may read it.
const (
	// FilesKey is the Secret's only key: the files of the spec, as a compressed tar archive. They
	// fit: a Secret holds 1 MiB, and a spec with its Secret values is at most a quarter of that.
	FilesKey = "files"

	filesSecretPrefix = "drover-files-"
	// filesConfigPath holds curl's configuration, with the token. It exists until the files do.
	filesConfigPath = "/etc/kubernetes/drover-files.conf"
)

// FilesSecretName returns the name of the Secret for a token ID.
func FilesSecretName(tokenID string) string { return filesSecretPrefix + tokenID }

// Split renders user data without the files of the spec, and returns the files separately. The
// machine fetches them from the cluster's API server before it installs anything. The same input
// gives the same bytes, and the user data contain the SHA-256 of the files.
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

// tarOf returns the files as a compressed tar archive. If the machine has no such owner, tar uses
// root.
func tarOf(files []file) ([]byte, error) {
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	w := tar.NewWriter(packed)
	for _, f := range files {
		mode, err := strconv.ParseInt(f.mode(), 8, 32)
		if err != nil {
			return nil, errors.New("a file's permissions are not octal") // the earlier checks prevent this
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

// fetchFiles makes the script fetch the files over TLS, verified only by the cluster's CA, and
// check their SHA-256. The token is not in the arguments of any program.
func (n *node) fetchFiles(in Input, files []byte) {
	id, _, _ := strings.Cut(in.Token, ".")
	n.add(file{path: filesConfigPath, permissions: "0600", content: strings.Join([]string{
		"fail", "silent", "show-error", "globoff", "connect-timeout = 20", "max-time = 300",
		"url = " + quoteForCurl(in.Server+"/api/v1/namespaces/kube-system/secrets/"+FilesSecretName(id)),
		"header = " + quoteForCurl("Authorization: Bearer "+in.Token),
		"header = " + quoteForCurl("Accept: application/json"),
		"cacert = " + quoteForCurl(CAPath),
	}, "\n") + "\n"})
	if joinsByKubeadm(in.Spec) { // which writes its own copy later
		n.add(file{path: CAPath, content: string(in.CA)})
	}
	if s := systemOf(in.Spec); Installs(in.Spec) && s.packages != nil {
		n.tools(s, "Installing the tools that fetching files needs", "curl", "tar")
	}
	sum := sha256.Sum256(files)
	n.do("Fetching the files", fmt.Sprintf(fetchFilesText, hex.EncodeToString(sum[:])))
}

// quoteForCurl returns s as one value in curl's configuration, which supports these two escapes. No
// value contains a line break.
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
