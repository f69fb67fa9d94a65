// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"fmt"

	"github.com/vmware/govmomi/vim25/types"
	"k8s.io/utils/ptr"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// upgradeOf makes vCenter upgrade the VM's hardware at power-on, which is part of the clone call.
// It returns nil if the template's version is new enough. A clone has its template's version
// (VirtualMachineConfigSpec.version is for new VMs alone, and UpgradeVM_Task is a separate call),
// but its own schedule: with the policy "always", the upgrade runs "when the virtual machine is
// powered on" (vcenter/vm/hardware, UpgradePolicy). The schedule must name a version newer than the
// VM's (UpdateSpec, upgrade_version).
func (t template) upgradeOf(wanted string) (*types.ScheduledHardwareUpgradeInfo, error) {
	if wanted == "" {
		return nil, nil
	}
	to, err := types.ParseHardwareVersion(wanted)
	if err != nil {
		return nil, cloud.Invalid("hardwareVersion: %q is invalid, use for example vmx-21", cloud.Clip(wanted, 16))
	}
	if is, err := types.ParseHardwareVersion(t.version); err == nil && is >= to {
		return nil, nil
	}
	return &types.ScheduledHardwareUpgradeInfo{
		UpgradePolicy: string(types.ScheduledHardwareUpgradeInfoHardwareUpgradePolicyAlways), VersionKey: wanted,
	}, nil
}

// outdated returns why a running VM's hardware is older than requested, or "" if it is not.
func (v *vcenter) outdated(m vm) string {
	wanted, is := m.text(option(optionHardware)), m.text("config.version")
	to, err := types.ParseHardwareVersion(wanted)
	if err != nil {
		return ""
	}
	if has, err := types.ParseHardwareVersion(is); err == nil && has >= to {
		return ""
	}
	why := ""
	if schedule, ok := m.properties["config.scheduledHardwareUpgradeInfo"].(types.ScheduledHardwareUpgradeInfo); ok && schedule.Fault != nil {
		why = ": " + v.faultError("the upgrade", schedule.Fault.Fault, schedule.Fault.LocalizedMessage).Message
	}
	return fmt.Sprintf("the hardware version is %s instead of %s%s; upgrade the template, and replace the machine", cloud.Clip(is, 16),
		cloud.Clip(wanted, 16), why)
}

// bootOptions returns the boot options that the machine's fields set, or nil for none.
func bootOptions(spec *infrav1.VSphereMachine) *types.VirtualMachineBootOptions {
	b := spec.BootOptions
	if spec.SecureBoot == "" && b == (infrav1.VSphereBootOptions{}) {
		return nil
	}
	o := &types.VirtualMachineBootOptions{BootDelay: int64(b.DelayMilliseconds), EfiSecureBootEnabled: driverkit.Bool(spec.SecureBoot)}
	if b.RetryAfterMilliseconds > 0 {
		o.BootRetryEnabled, o.BootRetryDelay = ptr.To(true), int64(b.RetryAfterMilliseconds)
	}
	return o
}

// firmwareOf returns vSphere's name of the firmware, or "" for the template's.
func firmwareOf(spec *infrav1.VSphereMachine) string {
	return map[infrav1.VSphereFirmware]string{
		infrav1.VSphereFirmwareBIOS: string(types.GuestOsDescriptorFirmwareTypeBios),
		infrav1.VSphereFirmwareEFI:  string(types.GuestOsDescriptorFirmwareTypeEfi),
	}[spec.BootOptions.Firmware]
}
