// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// module is the product's module.
const module = "github.com/drover-io/drover"

// goMod is what "go mod edit -json" prints.
type goMod struct {
	Go, Toolchain string
	Require       []struct {
		Path, Version string
		Indirect      bool
	}
	Replace []struct{ Old, New struct{ Path string } }
}

func readGoMod(t *testing.T, folder string) goMod {
	t.Helper()
	var m goMod
	if err := json.Unmarshal(run(t, nil, "go", "mod", "edit", "-json", filepath.Join(folder, "go.mod")), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestModules tests that the product's module is whole without the one in test/, that the two are
// built with the same versions, so that what is tested is what is shipped, and that only tests
// have what is made for tests.
func TestModules(t *testing.T) {
	product, tests := readGoMod(t, "."), readGoMod(t, "test")
	if len(product.Replace) != 0 {
		t.Errorf("go.mod replaces %v: whoever imports the module does not get that", product.Replace)
	}
	if product.Go != tests.Go || product.Toolchain != tests.Toolchain {
		t.Errorf("go.mod has Go %s, %s; test/go.mod has %s, %s", product.Go, product.Toolchain, tests.Go, tests.Toolchain)
	}
	versions := map[string]string{}
	for _, r := range product.Require {
		versions[r.Path] = r.Version
		for _, path := range []string{module, "sigs.k8s.io/kind", "sigs.k8s.io/cluster-api/test", "github.com/prometheus-operator/"} {
			if strings.HasPrefix(r.Path, path) || (!r.Indirect && strings.HasPrefix(r.Path, "github.com/onsi/ginkgo")) {
				t.Errorf("go.mod requires %s, which only test/ needs", r.Path)
				break
			}
		}
	}
	same := 0
	for _, r := range tests.Require {
		if v, both := versions[r.Path]; both && v != r.Version {
			t.Errorf("go.mod requires %s %s, test/go.mod %s: run 'go mod tidy' in both folders", r.Path, v, r.Version)
		} else if both {
			same++
		}
	}
	if same < 50 {
		t.Errorf("the modules share %d requirements only", same)
	}

	for program, without := range map[string][]string{
		".": {
			"github.com/onsi/ginkgo", module + "/internal/test/", module + "/cloud/conformance", module + "/cloud/simulated/simulator",
			module + "/cloud/aws/ec2stub", module + "/cloud/azure/armstub", module + "/cloud/gcp/gcpstub",
		},
		"./cmd/drover": {"github.com/onsi/ginkgo", module + "/internal/test/"},
	} {
		packages := strings.Fields(string(run(t, nil, "go", "list", "-deps", program)))
		if len(packages) < 100 {
			t.Errorf("%s is made of %d packages only", program, len(packages))
		}
		for _, name := range packages {
			for _, prefix := range without {
				if strings.HasPrefix(name, prefix) {
					t.Errorf("%s contains %s, which is for tests", program, name)
				}
			}
		}
	}
}
