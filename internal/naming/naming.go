// SPDX-License-Identifier: Apache-2.0

// Package naming defines names that several packages use. It imports no package of Drover.
package naming

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// maxNodeName is the longest host name that Linux accepts, minus one for programs that count a
// trailing zero byte.
const maxNodeName = 63

// NodeName returns the name of a machine's Node. That is the Machine's name if it is a valid host
// name. Otherwise it is as much of the name as is valid, plus ten digits of its SHA-256, so that
// two long names stay distinct.
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

// NewToken returns the creation token of a machine or a load balancer: a management cluster's
// identity, which has 8 hexadecimal digits, followed by 96 random bits, in characters that every
// cloud accepts as a tag and as a client token. tagging.IsImportToken tells it from others.
func NewToken(identity string) string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return identity + hex.EncodeToString(b[:])
}
