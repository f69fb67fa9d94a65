// SPDX-License-Identifier: Apache-2.0

// Package host gives a simulated machine what real programs need: a network, a hostname and files
// of its own. It runs them as processes of this computer, in namespaces. It works on Linux, for
// root, with the program ip of iproute2. It knows nothing of Kubernetes.
package host

// Options describe a machine.
type Options struct {
	// Name is the hostname.
	Name string
	// IP is the machine's only address. This computer and all its hosts reach it.
	IP string
	// Dir is a folder for the files that the machine writes. It is the machine's disk: a Host that
	// is opened again with the same folder has them still.
	Dir string
	// Path are the folders of programs that come before this computer's own.
	Path []string
}
