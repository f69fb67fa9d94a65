// SPDX-License-Identifier: Apache-2.0

// Package naming has the names that more than one room must know. It imports nothing of ours.
package naming

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// maxNodeName is the longest host name that Linux takes, less one for those that count a final zero
// byte.
const maxNodeName = 63

// NodeName returns the name that a machine's Node will have: the Machine's own name where that can
// be a host name, and otherwise as much of it as can be, and ten digits of its SHA-256 so that two
// long names stay apart.
func NodeName(machine string) string {
	if len(machine) <= maxNodeName && len(validation.IsDNS1123Subdomain(machine)) == 0 {
		return machine
	}
	sum := sha256.Sum256([]byte(machine))
	suffix := hex.EncodeToString(sum[:])[:10]

	var b strings.Builder
	for _, r := range strings.ToLower(machine) {
		if b.Len() == maxNodeName-1-len(suffix) {
			break
		}
		if (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') {
			b.WriteRune(r)
		} else {
			b.WriteByte('-')
		}
	}
	prefix := strings.Trim(b.String(), "-")
	if prefix == "" {
		return "node-" + suffix
	}
	return prefix + "-" + suffix
}
