// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
)

// TestCredentialsWithLineBreak: the Secret's values end in a line break, as "echo secret | base64"
// makes them. A space belongs to the password.
func TestCredentialsWithLineBreak(t *testing.T) {
	v := start(t)
	for name, c := range map[string]map[string][]byte{
		"both":     {usernameKey: []byte(username + "\n"), passwordKey: []byte(password + "\n")},
		"password": {usernameKey: []byte(username), passwordKey: []byte(password + "\n")},
		"Windows":  {usernameKey: []byte(username), passwordKey: []byte(password + "\r\n")},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := newDriver(cloud.Config{Account: v.account, Credentials: c, Connect: conformance.Through(v)})
			if err == nil {
				_, err = d.Probe(t.Context())
			}
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
		})
	}
	d, err := newDriver(cloud.Config{Account: v.account,
		Credentials: map[string][]byte{usernameKey: []byte(username), passwordKey: []byte(password + " ")}, Connect: conformance.Through(v)})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	_, err = d.Probe(t.Context())
	NewWithT(t).Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
}
