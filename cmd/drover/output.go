// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// The formats in which a command prints its result.
const (
	asText = "text"
	asJSON = "json"
	asYAML = "yaml"
)

// format is the flag --output.
type format string

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "string" }

func (f *format) Set(value string) error {
	known := []string{asText, asJSON, asYAML}
	if !slices.Contains(known, value) {
		return fmt.Errorf("must be one of %s", strings.Join(known, ", "))
	}
	*f = format(value)
	return nil
}

// addFlag adds the flag to a command.
func (f *format) addFlag(cmd *cobra.Command) {
	*f = asText
	cmd.Flags().VarP(f, "output", "o", "How to print the result: text, json or yaml.")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{asText, asJSON, asYAML},
		cobra.ShellCompDirectiveNoFileComp)) // fails for no flag
}

// print prints a result: as text by a function, or else its fields.
func (f *format) print(out io.Writer, result any, text func() error) error {
	switch *f {
	case asJSON:
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(result)
	case asYAML:
		data, err := yaml.Marshal(result)
		if err != nil {
			return err
		}
		_, err = out.Write(data)
		return err
	}
	return text()
}
