// SPDX-License-Identifier: Apache-2.0

// kube-api-linter runs the linters of sigs.k8s.io/kube-api-linter, which is published only as a
// plugin of golangci-lint, on packages with API types: kube-api-linter CONFIG PACKAGE...
package main

import (
	"log"
	"os"

	"golang.org/x/tools/go/analysis/multichecker"
	linter "sigs.k8s.io/kube-api-linter"
	"sigs.k8s.io/yaml"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 {
		log.Fatal("usage: kube-api-linter CONFIG PACKAGE...")
	}
	config, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var settings map[string]any
	if err := yaml.UnmarshalStrict(config, &settings); err != nil {
		log.Fatalf("%s: %v", os.Args[1], err)
	}
	plugin, err := linter.New(settings)
	if err != nil {
		log.Fatalf("%s: %v", os.Args[1], err)
	}
	analyzers, err := plugin.BuildAnalyzers()
	if err != nil {
		log.Fatalf("%s: %v", os.Args[1], err)
	}
	os.Args = append(os.Args[:1], os.Args[2:]...) // multichecker reads the packages from them
	multichecker.Main(analyzers...)
}
