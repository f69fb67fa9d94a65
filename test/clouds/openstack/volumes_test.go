// SPDX-License-Identifier: Apache-2.0

package openstack_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// TestVolumes tests that a machine boots from a volume and has further volumes, with the requested
// sizes and types, and that they are deleted with it.
func TestVolumes(t *testing.T) {
	g := NewWithT(t)
	who := newTenant(t)
	owner, calls := newOwner(t, who), &counted{}
	d := connect(t, who, calls)
	for name, change := range map[string]func(*infrav1.OpenStackMachine){
		"root": func(m *infrav1.OpenStackMachine) {
			m.RootVolume = infrav1.OpenStackVolume{SizeGiB: 3, Type: "fast"}
			m.Volumes = []infrav1.OpenStackVolume{{SizeGiB: 2}, {SizeGiB: 1, Type: "fast"}}
		},
		"further ones alone": func(m *infrav1.OpenStackMachine) { m.Volumes = []infrav1.OpenStackVolume{{SizeGiB: 4}} },
	} {
		req := request(owner, newToken(), machine(change))
		made, err := d.Ensure(t.Context(), req)
		g.Expect(err).NotTo(HaveOccurred())
		until(t, name+": it runs", func() bool {
			found, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token}})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found[0].State).NotTo(Equal(cloud.StateFailed), found[0].Reason)
			return found[0].State == cloud.StateRunning
		})
		var have []string
		for _, v := range who.volumes() {
			if len(v.Attachments) == 1 && v.Attachments[0].Server == made.ID {
				have = append(have, fmt.Sprint(v.Size, " ", v.Type))
			}
		}
		g.Expect(have).To(ConsistOf(map[string][]string{"root": {"3 fast", "2 __DEFAULT__", "1 fast"},
			"further ones alone": {"4 __DEFAULT__"}}[name]))
	}
	g.Expect(calls.calls).To(HaveKeyWithValue("CreateServer", 2))
	until(t, "the machines are gone", func() bool { return deleteAll(t, d, owner) == 0 })
	until(t, "their volumes are gone", func() bool { return len(who.volumes()) == 0 })
}

// TestOwnVolumes tests that volumes with a zone are in this zone, which is that of the machine or
// another. They are deleted with the machine, and nothing is left if it is refused.
func TestOwnVolumes(t *testing.T) {
	g := NewWithT(t)
	who, admin := newTenant(t), logIn(t, "admin")
	owner, calls := newOwner(t, who), &counted{}
	d := connect(t, who, calls)
	req := request(owner, newToken(), machine(withAll))
	made := ensureMade(t, d, req)
	until(t, "it runs", func() bool {
		found, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found[0].State).NotTo(Equal(cloud.StateFailed), found[0].Reason)
		return found[0].State == cloud.StateRunning && found[0].FailureDomain == "az-1"
	})
	var have []string
	for _, v := range who.volumes() {
		if len(v.Attachments) == 1 && v.Attachments[0].Server == made.ID {
			have = append(have, fmt.Sprint(v.Size, " ", v.Type, " ", v.Zone))
		}
	}
	g.Expect(have).To(ConsistOf("3 fast az-1", "2 __DEFAULT__ nova", "1 __DEFAULT__ nova"))
	g.Expect(calls.calls).To(And(HaveKeyWithValue("CreateServer", 1), HaveKeyWithValue("CreateVolume", 2), HaveKeyWithValue("CreateTrunk", 1)))
	until(t, "it is gone", func() bool { return deleteAll(t, d, owner) == 0 })
	until(t, "all volumes are gone", func() bool { return len(who.volumes()) == 0 })
	g.Expect(calls.count("DeleteTrunk")).To(Equal(1))

	undo := setQuota(t, admin, who.project, "instances", 0)
	over := request(owner, newToken(), machine(withAll))
	until(t, "it is refused", func() bool {
		_, err := d.Ensure(t.Context(), over)
		g.Expect(cloud.CodeOf(err)).To(BeElementOf(cloud.Unavailable, cloud.QuotaExceeded), "%v", err)
		return cloud.CodeOf(err) == cloud.QuotaExceeded
	})
	until(t, "nothing is left", func() bool { return len(who.left(owner)) == 0 })
	undo()
	setVolumeQuota(t, admin, who, 1)
	_, err := d.Ensure(t.Context(), over)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.QuotaExceeded), "%v", err)
	until(t, "nothing is left", func() bool { return deleteAll(t, d, owner) == 0 })
}

// setVolumeQuota sets the quota. It retries, because Cinder refuses a quota below the current use.
func setVolumeQuota(t testing.TB, admin, who *tenant, n int) {
	set := func(n int) {
		until(t, "Cinder takes the quota", func() bool {
			_, err := admin.volume.Request(withoutEnd(t), http.MethodPut, admin.volume.ResourceBaseURL()+"os-quota-sets/"+who.project,
				&gophercloud.RequestOpts{
					JSONBody: map[string]any{"quota_set": map[string]any{"volumes": n}}, OkCodes: []int{http.StatusOK},
				})
			return err == nil
		})
	}
	set(n)
	t.Cleanup(func() { set(1000) })
}

// TestVolumeQuota tests that a machine whose volume exceeds the quota fails. Nova detects this only
// after it has accepted the request.
func TestVolumeQuota(t *testing.T) {
	g := NewWithT(t)
	who, admin := newTenant(t), logIn(t, "admin")
	setVolumeQuota(t, admin, who, 0)
	owner := newOwner(t, who)
	d := connect(t, who, http.DefaultTransport)
	req := request(owner, newToken(), machine(func(m *infrav1.OpenStackMachine) { m.RootVolume = infrav1.OpenStackVolume{SizeGiB: 1} }))
	_, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	until(t, "it fails", func() bool {
		found, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token}})
		g.Expect(err).NotTo(HaveOccurred())
		return found[0].State == cloud.StateFailed && found[0].Code == cloud.QuotaExceeded
	})
	g.Expect(who.volumes()).To(BeEmpty())
}
