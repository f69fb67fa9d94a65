// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// Bool returns nil for a feature that nobody has set, so that the cloud's own default is used.
func Bool(state infrav1.FeatureState) *bool {
	if state == "" {
		return nil
	}
	enabled := state == infrav1.FeatureEnabled
	return &enabled
}

// MaxUserData returns a cloud.Cloud.CheckUserData that allows at most limit bytes.
func MaxUserData(limit int) func([]byte) error {
	return func(userData []byte) error {
		if len(userData) > limit {
			return fmt.Errorf("the user data has %d bytes, and the cloud accepts at most %d", len(userData), limit)
		}
		return nil
	}
}

// Fields is the cloud.Union of a cloud whose member has the type A in a DroverAccount, and M in a
// DroverMachine.
type Fields[A, M any] struct {
	// Account and Machine return the cloud's member; nil if it is not set.
	Account func(*infrav1.DroverAccountSpec) *A
	Machine func(*infrav1.DroverMachineFields) *M
	// CheckAccount and CheckMachine are called only if the member is set; nil: there is nothing to
	// check. path is the path of the object that holds the union.
	CheckAccount func(spec *infrav1.DroverAccountSpec, path *field.Path) field.ErrorList
	CheckMachine func(machine *M, path *field.Path) field.ErrorList
}

// InAccount implements cloud.Union.
func (f Fields[A, M]) InAccount(spec *infrav1.DroverAccountSpec) bool {
	return spec != nil && f.Account(spec) != nil
}

// InMachine implements cloud.Union.
func (f Fields[A, M]) InMachine(fields *infrav1.DroverMachineFields) bool {
	return fields != nil && f.Machine(fields) != nil
}

// ValidateAccount implements cloud.Union.
func (f Fields[A, M]) ValidateAccount(spec *infrav1.DroverAccountSpec, path *field.Path) field.ErrorList {
	if f.CheckAccount == nil || !f.InAccount(spec) {
		return nil
	}
	return f.CheckAccount(spec, path)
}

// ValidateMachine implements cloud.Union.
func (f Fields[A, M]) ValidateMachine(fields *infrav1.DroverMachineFields, path *field.Path) field.ErrorList {
	if f.CheckMachine == nil || !f.InMachine(fields) {
		return nil
	}
	return f.CheckMachine(f.Machine(fields), path)
}

// MachineOf returns the cloud's member of a machine, or InvalidSpec if it is not set.
func (f Fields[A, M]) MachineOf(fields *infrav1.DroverMachineFields) (*M, error) {
	if !f.InMachine(fields) {
		return nil, cloud.Invalid("the machine's spec has no fields for the account's cloud")
	}
	return f.Machine(fields), nil
}

// AccountOf returns the cloud's member of an account, or InvalidSpec if it is not set.
func (f Fields[A, M]) AccountOf(spec *infrav1.DroverAccountSpec) (*A, error) {
	if !f.InAccount(spec) {
		return nil, cloud.Invalid("the account's spec has no fields for this cloud")
	}
	return f.Account(spec), nil
}
