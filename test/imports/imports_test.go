// SPDX-License-Identifier: Apache-2.0

package imports

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/drover-io/drover"

// pkg is a package as "go list -json" describes it.
type pkg struct {
	ImportPath string
	Imports    []string
}

// kubernetesClients are the modules that connect to an API server.
var kubernetesClients = []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime"}

// armModels is the module with Microsoft's models of Azure's API.
const armModels = "github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute"

// scanners is the package that counts what answers become when they are decoded. The forwarder and
// what serves the drivers share it.
const scanners = "internal/scan"

// budgets is the package that divides what is kept of tenants' answers. The forwarder and the
// engine share it.
const budgets = "internal/budget"

// additions are what a driver may add to the contract for a command. The manager uses none of them.
var additions = []string{"cloud/preflight", "cloud/tagging"}

// under reports whether path is dir or a path below it.
func under(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// relative returns a package's path inside the module. ours is false for packages of other modules.
func relative(path string) (dir string, ours bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

// driverOf returns the folder of the driver that a package belongs to, or "".
func driverOf(dir string) string {
	parts := strings.Split(dir, "/")
	if len(parts) < 2 || parts[0] != "cloud" {
		return ""
	}
	switch parts[1] {
	case "fleet", "driverkit", "registry", "conformance", "preflight", "tagging":
		return ""
	}
	return parts[0] + "/" + parts[1]
}

// isProgram reports whether a package is the manager, a command, or what both share.
func isProgram(from string) bool {
	return under(from, "cmd") || under(from, "internal/manager") || under(from, "internal/options")
}

// isTest reports whether a package is in the module test, or one that the product's own tests
// share.
func isTest(dir string) bool { return under(dir, "test") || under(dir, "internal/test") }

// forbidden returns why a package may not import path, or "" if it may.
func forbidden(from, path string) string {
	to, ours := relative(path)
	client := !ours && (under(path, kubernetesClients[0]) || under(path, kubernetesClients[1]))
	simulator := under(from, "cloud/simulated/simulator") // a cloud, not a driver: its machines connect to API servers
	switch {
	case ours && to == ".":
		return "nothing imports main"
	case ours && under(to, "cmd"):
		return "nothing imports a command"
	case ours && under(to, "internal/manager") && from != ".":
		return "only main imports the manager"
	case ours && under(to, "internal/options") && !isProgram(from):
		return "only programs import their options"
	case ours && under(to, "internal/takeover") && !under(from, "cmd"):
		return "only the command imports takeover"
	case ours && slices.Contains(additions, to) && (under(from, "controllers") || from == "cloud/driverkit"):
		return "only commands use what drivers add for them"
	case from == ".":
		if client || (ours && !under(to, "internal/manager")) {
			return "main imports only the manager"
		}
	case under(path, armModels) && !under(from, "cloud/azure/armstub"):
		return "Microsoft's models judge the Azure driver, and do not get into the program"
	case ours && isTest(to) && !isTest(from):
		return "only tests import test"
	case under(from, "internal/test"):
		if ours && under(to, "test") {
			return "what the product's tests share does not know the module test"
		}
	case under(from, "api"):
		if ours {
			return "api imports nothing else in this module"
		}
	case under(from, "internal/forwarder"):
		if ours && !under(to, "internal/kubeconfig") && to != scanners && to != budgets {
			return "the forwarder imports only kubeconfig, the scanners and the budgets"
		}
	case isProgram(from):
		if d := driverOf(to); ours && d != "" && (!under(to, "cloud/simulated/simulator") || !under(from, "cmd")) {
			return "a program knows no driver: the registry does"
		}
	case under(from, "internal/takeover"):
		if ours && !under(to, "api") && to != "cloud" && to != "cloud/tagging" && !under(to, "internal") {
			return "takeover imports only api, the contract and internal"
		}
	case under(from, "internal"):
		if ours {
			return "internal packages import nothing else in this module"
		}
	case driverOf(from) != "":
		// KubeVirt's API is Kubernetes' own: its driver uses client-go as others use their SDK.
		if client && !simulator && (from != "cloud/kubevirt" || !under(path, kubernetesClients[0])) {
			return "a driver knows no Kubernetes client"
		}
		if ours && !under(to, "api") && !under(to, "cloud") && !under(to, "internal/kubeconfig") && !under(to, "internal/naming") {
			return "a driver imports only api, cloud, kubeconfig and naming"
		}
		if d := driverOf(to); ours && d != "" && d != driverOf(from) {
			return "a driver never imports another one"
		}
		if ours && under(to, "cloud/simulated/simulator") && !simulator {
			return "the simulated cloud is a process of its own"
		}
		if ours && under(to, "cloud/registry") {
			return "the registry lies above the drivers"
		}
		if ours && under(to, "cloud/fleet") {
			return "a driver does not know the engine"
		}
	case under(from, "cloud/registry"):
		if client || (ours && (!under(to, "cloud") || under(to, "cloud/simulated/simulator"))) {
			return "the registry imports only package cloud and the drivers"
		}
	case from == "cloud":
		if client || (ours && !under(to, "api")) {
			return "the contract imports only api"
		}
	case slices.Contains(additions, from):
		if client || (ours && to != "cloud") {
			return "what a driver adds for a command imports only the contract"
		}
	case under(from, "cloud"): // fleet, driverkit and conformance
		if client {
			return "cloud knows no Kubernetes client"
		}
		if ours && !under(to, "api") && to != "cloud" && !slices.Contains(additions, to) && to != scanners && to != budgets {
			return "what serves the contract imports only the contract, api, the scanners and the budgets"
		}
	case under(from, "bootstrap/csr"):
		if client || (ours && !under(to, "api")) {
			return "the judge of certificates imports only api, and knows no Kubernetes client"
		}
	case under(from, "bootstrap/token"):
		if ours && !under(to, "api") {
			return "tokens import only api"
		}
	case under(from, "bootstrap/render"):
		if ours && !under(to, "api") && !under(to, "bootstrap/render") && !under(to, "internal/naming") {
			return "what renders user data imports only api and naming"
		}
	case under(from, "bootstrap"):
		if ours && !under(to, "api") && !under(to, "bootstrap") && !under(to, "internal") {
			return "bootstrap imports only api and internal"
		}
	case under(from, "controllers"):
		if ours && !under(to, "api") && !under(to, "cloud") && !under(to, "controllers") && !under(to, "internal") {
			return "controllers import only api, cloud and internal"
		}
		if d := driverOf(to); ours && d != "" {
			return "controllers know no driver: the registry does"
		}
	}
	return ""
}

// lookAt opens every folder with sources. Go's test cache depends on the files that the test itself
// opens, not on what "go list" reads. Without this, Go would show an old result after a change.
func lookAt(t *testing.T, root string) {
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && path != root && strings.HasPrefix(e.Name(), ".") {
			return filepath.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatalf("walk the sources: %v", err)
	}
}

func TestForbidden(t *testing.T) {
	for _, c := range []struct {
		from, to string
		allowed  bool
	}{
		{"api/infrastructure/v1beta1", module + "/cloud", false},
		{"api/infrastructure/v1beta1", "k8s.io/api/core/v1", true},
		{"cloud", module + "/api/infrastructure/v1beta1", true},
		{"cloud", module + "/controllers", false},
		{"cloud", module + "/cloud/simulated", false},
		{"cloud", "k8s.io/client-go/kubernetes", false},
		{"cloud", "sigs.k8s.io/controller-runtime", false},
		{"cloud", "k8s.io/client-gone", true},
		{"cloud", module + "/cloud/driverkit", false},
		{"cloud", module + "/cloud/fleet", false},
		{"cloud/fleet", module + "/cloud", true},
		{"cloud/fleet", module + "/cloud/driverkit", false},
		{"cloud/fleet", module + "/cloud/aws", false},
		{"cloud/fleet", "k8s.io/client-go/kubernetes", false},
		{"cloud/driverkit", module + "/cloud", true},
		{"cloud/driverkit", module + "/cloud/tagging", false},
		{"cloud/tagging", module + "/cloud", true},
		{"cloud/tagging", module + "/cloud/fleet", false},
		{"cloud/preflight", module + "/cloud/tagging", false},
		{"cloud", module + "/cloud/preflight", false},
		{"cloud/fleet", module + "/cloud/preflight", true},
		{"cloud/aws", module + "/cloud/tagging", true},
		{"controllers", module + "/cloud/tagging", false},
		{"controllers/safety", module + "/cloud/preflight", false},
		{"cmd", module + "/cloud/tagging", true},
		{"cloud/driverkit", module + "/cloud/fleet", false},
		{"cloud/aws", module + "/cloud/driverkit", true},
		{"cloud/aws", module + "/cloud/fleet", false},
		{"controllers", module + "/cloud/fleet", true},
		{"cloud/aws", module + "/cloud", true},
		{"cloud/azure", armModels + "/v8", false},
		{"cloud/azure/armstub", armModels + "/v8", true},
		{"cloud/aws", module + "/cloud/simulated", false},
		{"cloud/aws/internal/ec2", module + "/cloud/aws", true},
		{"cloud/aws", module + "/bootstrap", false},
		{"cloud/aws", "sigs.k8s.io/controller-runtime/pkg/client", false},
		{"cloud/kubevirt", module + "/internal/kubeconfig", true},
		{"cloud/kubevirt", "k8s.io/client-go/rest", true},
		{"cloud/kubevirt", "sigs.k8s.io/controller-runtime/pkg/client", false},
		{"cloud/aws", "k8s.io/client-go/rest", false},
		{"cloud/aws", module + "/internal/naming", true},
		{"cloud", module + "/internal/kubeconfig", false},
		{"internal/kubeconfig", module + "/cloud", false},
		{"internal/forwarder", module + "/internal/kubeconfig", true},
		{"internal/forwarder", module + "/controllers", false},
		{"internal/forwarder", module + "/internal/scan", true},
		{"internal/scan", module + "/internal/kubeconfig", false},
		{"cloud/driverkit", module + "/internal/scan", true},
		{"cloud/driverkit", module + "/internal/egress", false},
		{"cloud/aws", module + "/internal/scan", false},
		{"cloud/simulated", module + "/cloud/simulated/simulator", false},
		{"cloud/simulated/simulator", "k8s.io/client-go/kubernetes", true},
		{"cloud/simulated/simulator", module + "/controllers", false},
		{"cloud/registry", module + "/cloud/simulated", true},
		{"cloud/registry", module + "/controllers", false},
		{"bootstrap", module + "/api/bootstrap/v1beta1", true},
		{"bootstrap", module + "/cloud", false},
		{"bootstrap", module + "/bootstrap/csr", true},
		{"bootstrap", module + "/internal/kubeconfig", true},
		{"bootstrap", module + "/internal/naming", true},
		{"bootstrap", module + "/controllers", false},
		{"bootstrap/csr", module + "/api/infrastructure/v1beta1", true},
		{"bootstrap/csr", module + "/bootstrap/token", false},
		{"bootstrap/csr", "sigs.k8s.io/controller-runtime/pkg/client", false},
		{"bootstrap/token", "sigs.k8s.io/controller-runtime/pkg/client", true},
		{"bootstrap/token", module + "/bootstrap/csr", false},
		{"bootstrap/render", module + "/internal/naming", true},
		{"bootstrap/render", module + "/bootstrap/token", false},
		{"internal/naming", module + "/api/bootstrap/v1beta1", false},
		{"controllers", module + "/internal/naming", true},
		{"controllers", module + "/internal/kubeconfig", true},
		{"controllers", module + "/bootstrap", false},
		{"controllers", module + "/bootstrap/render", false},
		{"controllers", module + "/cloud", true},
		{"controllers", module, false},
		{"controllers", module + "/cloud/simulated", false},
		{"controllers", module + "/internal/test/playground", false},
		{"controllers", module + "/internal/predicates", true},
		{"controllers", module + "/cmd/drover", false},
		{"bootstrap", module + "/internal/validation", true},
		{"internal/validation", module + "/api/infrastructure/v1beta1", false},
		{"cloud", module + "/internal/egress", false},
		{".", module + "/cmd/drover", false},
		{".", module + "/internal/manager", true},
		{"internal/manager", module + "/controllers", true},
		{"internal/manager", module + "/internal/options", true},
		{"internal/manager", module + "/internal/takeover", false},
		{"internal/manager", module + "/cloud/simulated/simulator", false},
		{"controllers", module + "/internal/options", false},
		{".", module + "/controllers", false},
		{"cmd/drover", module + "/controllers", true},
		{"cmd/drover", module + "/internal/takeover", true},
		{"controllers", module + "/internal/takeover", false},
		{"internal/takeover", module + "/cloud", true},
		{"internal/takeover", module + "/cloud/tagging", true},
		{"internal/takeover", module + "/cloud/preflight", false},
		{"internal/takeover", module + "/cloud/aws", false},
		{"internal/takeover", module + "/controllers", false},
		{"cmd/drover", module + "/bootstrap", true},
		{"cmd/drover", module + "/cloud/registry", true},
		{"cmd/drover", module + "/cloud/simulated/simulator", true},
		{"cmd/drover", module + "/cloud/aws", false},
		{"cmd/drover", module + "/internal/egress", true},
		{"cmd/drover", module + "/internal/test/playground", false},
		{"internal/test/engine", module + "/cloud/fleet", true},
		{"internal/test/playground", module + "/test/rig", false},
		{"test/rig", module + "/internal/test/playground", true},
		{"test/rig", module + "/cmd/drover", false},
	} {
		if reason := forbidden(c.from, c.to); (reason == "") != c.allowed {
			t.Errorf("%s → %s: allowed should be %t, got %q", c.from, c.to, c.allowed, reason)
		}
	}
}

// TestNoImportPointsUpwards checks the imports of every package of both modules, except those of
// test files.
func TestNoImportPointsUpwards(t *testing.T) {
	lookAt(t, "../..")
	for _, folder := range []string{"../..", ".."} {
		list := exec.Command("go", "list", "-e", "-json=ImportPath,Imports", "./...")
		list.Dir = folder
		var stderr bytes.Buffer
		list.Stderr = &stderr
		out, err := list.Output()
		if err != nil {
			t.Fatalf("go list: %v\n%s", err, stderr.String())
		}
		seen := 0
		for d := json.NewDecoder(bytes.NewReader(out)); ; seen++ {
			var p pkg
			if err := d.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("read what go list says: %v", err)
			}
			from, _ := relative(p.ImportPath)
			for _, path := range p.Imports {
				if reason := forbidden(from, path); reason != "" {
					t.Errorf("%s imports %s: %s", from, path, reason)
				}
			}
		}
		if seen < 5 {
			t.Errorf("go list told of %d packages in %s only", seen, folder)
		}
	}
}
