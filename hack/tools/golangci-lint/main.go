// SPDX-License-Identifier: Apache-2.0

// golangci-lint with kube-api-linter, which is published only as a plugin of it.
package main

import (
	"fmt"
	"os"

	"github.com/golangci/golangci-lint/v2/pkg/commands"
	"github.com/golangci/golangci-lint/v2/pkg/exitcodes"
	_ "sigs.k8s.io/kube-api-linter" // registers itself
)

func main() {
	if err := commands.Execute(commands.BuildInfo{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitcodes.Failure)
	}
}
