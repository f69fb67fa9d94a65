// SPDX-License-Identifier: Apache-2.0

// Package docs tests that the user documentation matches the code: every condition, flag and metric
// is described and exists, links have targets, and the examples are valid objects. It reads the
// source and the documents, and runs only the manager's --help.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubeadmv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

const root = "../.."

// book returns all documents for users, by path from the root.
func book(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			name, err := filepath.Rel(root, path)
			if err != nil {
				t.Fatal(err)
			}
			docs[name] = read(t, name)
		}
	}
	return docs
}

// read reads a file by its path from the root.
func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	anchor  = regexp.MustCompile(`<a id="([^"]+)"></a>`)
	span    = regexp.MustCompile("(?s)``.*?``|`[^`]*`")
	example = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")
)

func TestLinksLeadSomewhere(t *testing.T) {
	docs := book(t)
	for name, text := range docs {
		for _, m := range link.FindAllStringSubmatch(span.ReplaceAllString(fence.ReplaceAllString(text, ""), ""), -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path, fragment, _ := strings.Cut(target, "#")
			file := name
			if path != "" {
				file = filepath.Join(filepath.Dir(name), path)
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s: the link %s leads nowhere", name, target)
				continue
			}
			if fragment != "" && !anchors(docs[file])[fragment] {
				t.Errorf("%s: %s has no heading or row for #%s", name, file, fragment)
			}
		}
	}
}

// anchors returns the anchors that GitHub generates for a document's headings, and those of rows.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		found[strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			default:
				return -1
			}
		}, m[1])] = true
	}
	for _, m := range anchor.FindAllStringSubmatch(text, -1) {
		found[m[1]] = true
	}
	return found
}

// TestExamplesAreAccepted tests that every YAML example of our kinds and Cluster API's decodes
// strictly: an unknown field is an error.
func TestExamplesAreAccepted(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clusterv1.AddToScheme, infrav1.AddToScheme, bootstrapv1.AddToScheme,
		controlplanev1.AddToScheme,
		kubeadmv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	seen := 0
	for name, text := range book(t) {
		for _, block := range example.FindAllStringSubmatch(text, -1) {
			for _, doc := range strings.Split("\n"+block[1], "\n---") {
				var meta struct{ APIVersion, Kind string }
				if err := yaml.Unmarshal([]byte(doc), &meta); err != nil {
					t.Errorf("%s: %v in\n%s", name, err, doc)
					continue
				}
				group, _, _ := strings.Cut(meta.APIVersion, "/")
				if !strings.HasSuffix(group, "cluster.x-k8s.io") || group == "clusterctl.cluster.x-k8s.io" ||
					group == "operator.cluster.x-k8s.io" { // which test/packaging creates
					continue
				}
				seen++
				if _, _, err := decoder.Decode([]byte(doc), nil, nil); err != nil {
					t.Errorf("%s: %s: %v", name, meta.Kind, err)
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no example was found")
	}
}
