// SPDX-License-Identifier: Apache-2.0

package options

import (
	"io"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
)

// Expand returns the arguments of a container, with the values of its environment as Kubernetes
// puts them in. A variable whose value is elsewhere stays as it is.
func Expand(c *corev1.Container) []string {
	var pairs []string
	for _, v := range c.Env {
		if v.ValueFrom == nil {
			pairs = append(pairs, "$("+v.Name+")", v.Value)
		}
	}
	values := strings.NewReplacer(pairs...)
	args := make([]string, len(c.Args))
	for i, arg := range c.Args {
		args[i] = values.Replace(arg)
	}
	return args
}

// Take sets those flags of a command that the manager has, too, to the values in the manager's
// arguments. Flags that the user has set stay.
func Take(f *pflag.FlagSet, args []string) error {
	var (
		clouds  Clouds
		orphans Orphans
	)
	theirs := pflag.NewFlagSet("manager", pflag.ContinueOnError)
	theirs.SetOutput(io.Discard)
	theirs.ParseErrorsAllowlist.UnknownFlags = true
	clouds.AddFlags(theirs)
	orphans.AddFlags(theirs)
	if err := theirs.Parse(args); err != nil {
		return err
	}
	var err error
	theirs.Visit(func(flag *pflag.Flag) {
		mine := f.Lookup(flag.Name)
		if err != nil || mine == nil || mine.Changed {
			return
		}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			err = mine.Value.(pflag.SliceValue).Replace(list.GetSlice())
			return
		}
		err = mine.Value.Set(flag.Value.String())
	})
	return err
}
