// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// TestHardware: hardware that the template lacks is part of the clone call, in vSphere's terms.
// Hardware that the template has is not requested.
func TestHardware(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	plain := sent(t, v)
	g.Expect(plain.Config.ScheduledHardwareUpgradeInfo).To(BeNil())
	g.Expect(plain.Config.BootOptions).To(BeNil())
	g.Expect(plain.Config.Firmware).To(BeEmpty())
	spec := sent(t, v, func(m *infrav1.VSphereMachine) {
		m.HardwareVersion = "vmx-21"
		m.BootOptions = infrav1.VSphereBootOptions{Firmware: infrav1.VSphereFirmwareEFI, DelayMilliseconds: 5000, RetryAfterMilliseconds: 10000}
	})
	g.Expect(spec.PowerOn).To(BeTrue())
	g.Expect(*spec.Config.ScheduledHardwareUpgradeInfo).To(Equal(types.ScheduledHardwareUpgradeInfo{UpgradePolicy: "always",
		VersionKey: "vmx-21"}))
	g.Expect(spec.Config.Version).To(BeEmpty(), "it is for new VMs alone")
	g.Expect(spec.Config.Firmware).To(Equal("efi"))
	g.Expect(spec.Config.BootOptions.BootDelay).To(BeEquivalentTo(5000))
	g.Expect(*spec.Config.BootOptions.BootRetryEnabled).To(BeTrue())
	g.Expect(spec.Config.BootOptions.BootRetryDelay).To(BeEquivalentTo(10000))
	g.Expect(spec.Config.BootOptions.EfiSecureBootEnabled).To(BeNil(), "the template decides")
	insecure := sent(t, v, func(m *infrav1.VSphereMachine) { m.SecureBoot = infrav1.FeatureDisabled })
	g.Expect(*insecure.Config.BootOptions.EfiSecureBootEnabled).To(BeFalse())
	template := v.named("DC0_C0_RP1_VM0")
	for wanted, asked := range map[string]bool{template.Config.Version: false, "vmx-09": false, "vmx-22": true} {
		spec := sent(t, v, func(m *infrav1.VSphereMachine) { m.HardwareVersion = wanted })
		g.Expect(spec.Config.ScheduledHardwareUpgradeInfo != nil).To(Equal(asked), "%s, of a template with %s", wanted, template.Config.Version)
	}
	_, err := v.driver(t).Ensure(t.Context(), request("newest", func(m *infrav1.VSphereMachine) { m.HardwareVersion = "newest" }))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec))
}

// TestHardwareOutdated: a running VM with older hardware than requested shows a notice with
// vCenter's reason until it is new enough. vcsim upgrades no VM. Verified to fail when a VM with
// newer hardware got a notice, too.
func TestHardwareOutdated(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	for _, version := range []string{"", "vmx-21"} {
		_, err := d.Ensure(t.Context(), request("m-"+version, func(m *infrav1.VSphereMachine) { m.HardwareVersion = version }))
		g.Expect(err).NotTo(HaveOccurred())
	}
	notice := func() string {
		all, err := d.List(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).To(ContainElement(And(HaveField("Token", "m-"), HaveField("Notice", ""))))
		for _, r := range all {
			if r.Token == "m-vmx-21" {
				return r.Notice
			}
		}
		return "it is not there"
	}
	m := v.with(cloud.TagToken, "m-vmx-21")[0]
	is := m.Config.Version
	g.Expect(notice()).To(And(ContainSubstring(is), ContainSubstring("instead of vmx-21; upgrade the template")))
	v.Context.WithLock(m, func() {
		m.Config.ScheduledHardwareUpgradeInfo = &types.ScheduledHardwareUpgradeInfo{
			UpgradePolicy: "always", VersionKey: "vmx-21", ScheduledHardwareUpgradeStatus: "failed",
			Fault: &types.LocalizedMethodFault{Fault: &types.NotSupported{}, LocalizedMessage: "the host is too old for " + password},
		}
	})
	g.Expect(notice()).To(ContainSubstring("the upgrade: NotSupported: the host is too old for [credential]"))
	for _, enough := range []string{"vmx-21", "vmx-22"} {
		v.Context.WithLock(m, func() { m.Config.Version = enough })
		g.Expect(notice()).To(BeEmpty())
	}
}
