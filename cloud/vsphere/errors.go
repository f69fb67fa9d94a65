// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"

	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vim25/xml"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// maxWords is how much of one message of vCenter is shown, in bytes.
const maxWords = 512

// maxFault is how many bytes a fault may have that an error keeps, because the error may be
// remembered. Of a larger one, it keeps the type.
const maxFault = 4 << 10

// codeOf returns the code of a fault, by the vSphere Web Services API reference. An interface here
// stands for a fault and its subtypes, so the narrow cases come first.
func codeOf(f types.BaseMethodFault) cloud.Code {
	switch f.(type) {
	case types.BaseInvalidLogin, types.BaseNoPermission: // NotAuthenticated and PasswordExpired are subtypes of these
		return cloud.Unauthorized
	case types.BaseInsufficientResourcesFault, *types.NoDiskSpace, types.BaseNoCompatibleHost, *types.NoActiveHostInCluster:
		return cloud.NoCapacity
	case types.BaseNotEnoughLicenses:
		return cloud.QuotaExceeded
	case *types.DuplicateName, *types.FileAlreadyExists, *types.AlreadyExists:
		return cloud.Conflict
	case *types.ManagedObjectNotFound, *types.FileNotFound, *types.NotFound:
		return cloud.NotFound
	case *types.TaskInProgress, *types.ConcurrentAccess, types.BaseInvalidState, types.BaseHostCommunication, types.BaseHostConnectFault,
		*types.InaccessibleDatastore, types.BaseTimedout, types.BaseFileFault, *types.RequestCanceled:
		return cloud.Unavailable
	case types.BaseInvalidArgument, *types.InvalidName, types.BaseVmConfigFault, types.BaseInvalidDatastore, types.BaseInvalidFolder,
		types.BaseMigrationFault, types.BaseNotSupported:
		return cloud.InvalidSpec
	}
	return cloud.Unknown
}

// vimFault carries vCenter's fault as the cause of an Error.
type vimFault struct{ types.BaseMethodFault }

func (f vimFault) Error() string { return nameOf(f.BaseMethodFault) }

// nameOf returns the fault's name in the API reference.
func nameOf(f types.BaseMethodFault) string {
	return reflect.Indirect(reflect.ValueOf(f)).Type().Name()
}

// isFault reports whether vCenter answered with this fault or, if T is an interface, with one of
// its subtypes.
func isFault[T any](err error) bool {
	var f vimFault
	if !errors.As(err, &f) {
		return false
	}
	_, ok := f.BaseMethodFault.(T)
	return ok
}

// faultError returns the typed error of a call's or task's fault, with vCenter's message.
func (v *vcenter) faultError(attempted string, f types.BaseMethodFault, words string) *cloud.Error {
	if f == nil {
		return cloud.Errorf(cloud.Unknown, "%s: failed, and vCenter gives no reason", attempted)
	}
	e := &cloud.Error{Code: codeOf(f), Message: attempted + ": " + nameOf(f), Err: vimFault{f}}
	switch f := f.(type) {
	case types.BaseInvalidArgument:
		if property := f.GetInvalidArgument().InvalidProperty; property != "" {
			e.Message += " (" + v.redactor.Clean(property, maxWords) + ")"
		}
	case types.BaseInvalidVmConfig:
		if property := f.GetInvalidVmConfig().Property; property != "" {
			e.Message += " (" + v.redactor.Clean(property, maxWords) + ")"
		}
	case types.BaseNoPermission:
		if privilege := f.GetNoPermission().PrivilegeId; privilege != "" {
			e.Message += " (" + v.redactor.Clean(privilege, maxWords) + ")"
		}
	}
	if words = strings.TrimPrefix(words, "*types."); words != "" && words != nameOf(f) {
		e.Message += ": " + v.redactor.Clean(words, maxWords)
	}
	if driverkit.SizeOf(f) > maxFault {
		if bare, ok := reflect.New(reflect.Indirect(reflect.ValueOf(f)).Type()).Interface().(types.BaseMethodFault); ok {
			e.Err = vimFault{bare}
		}
	}
	return e
}

// callError returns the typed error of a failed call. It shows nothing of an answer that is not
// vCenter's, because that may hold anything.
func (v *vcenter) callError(operation string, err error) error {
	var own *cloud.Error
	var queued *cloud.Queued
	var network net.Error
	var syntax *xml.SyntaxError
	switch {
	case soap.IsSoapFault(err):
		f := soap.ToSoapFault(err)
		return v.faultError(operation, toPointer(f.VimFault()), f.String)
	case errors.As(err, &own), errors.As(err, &queued), errors.As(err, &network), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF),
		errors.Is(err, context.Canceled):
		return v.redactor.NoResponse(operation, err)
	case errors.As(err, &syntax):
		return cloud.Errorf(cloud.Unavailable, "%s: the response is not complete XML", operation)
	}
	return cloud.Errorf(cloud.Unknown, "%s: unexpected response (not vCenter): check spec.cloud.vsphere.server", operation)
}

// statusError returns an error for an answer that is neither a result nor a fault, else nil.
func statusError(operation string, resp *http.Response) error {
	status := resp.StatusCode
	if status == http.StatusOK || status == http.StatusInternalServerError { // a fault comes with 500
		return nil
	}
	e := cloud.Errorf(driverkit.CodeOfStatus(status), "%s: unexpected response with status %d (not vCenter)", operation, status)
	e.RetryAfter = driverkit.RetryAfter(e.Code, resp.Header)
	return e
}

// toPointer returns a pointer to a fault that a decoder made as a value.
func toPointer(v types.AnyType) types.BaseMethodFault {
	if f, ok := v.(types.BaseMethodFault); ok || v == nil {
		return f
	}
	p := reflect.New(reflect.TypeOf(v))
	p.Elem().Set(reflect.ValueOf(v))
	f, _ := p.Interface().(types.BaseMethodFault)
	return f
}

func notSentError(operation string, err error) error {
	return &cloud.Error{Code: cloud.Unavailable, Message: operation + ": not sent: " + err.Error(), Err: err}
}

// isGone reports whether the object of an operation no longer exists.
func isGone(err error) bool { return isFault[*types.ManagedObjectNotFound](err) }
