// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"strings"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// instanceOnAzure returns the resource ID of the VM in a Node's provider ID, as the driver has it,
// or "".
func instanceOnAzure(providerID string) string {
	id, ok := strings.CutPrefix(providerID, "azure://")
	parts := strings.Split(id, "/")
	if !ok || len(parts) != 9 || parts[0] != "" || parts[8] == "" || parts[1] != "subscriptions" || parts[3] != "resourceGroups" ||
		parts[5] != "providers" ||
		parts[6] != "Microsoft.Compute" || parts[7] != "virtualMachines" {
		return ""
	}
	parts[4], parts[8] = strings.ToLower(parts[4]), strings.ToLower(parts[8])
	return strings.Join(parts, "/")
}

// azureAccount refuses another location or resource group than the account's.
func (s findings) azureAccount(at, location, group string, target *Target) {
	account := target.Account.Spec.Cloud.Azure
	if location != "" && !strings.EqualFold(strings.ReplaceAll(location, " ", ""), account.Location) {
		s.addRefused(at+"location", "it is %q, and the DroverAccount's is %q", location, account.Location)
	}
	if group != "" && !strings.EqualFold(group, account.ResourceGroup) {
		s.addRefused(at+"resourceGroup", "it is %q, and the DroverAccount's is %q", group, account.ResourceGroup)
	}
}

// onAzure returns the ID of a resource of the account's subscription.
func (t *Target) onAzure(group, kind, name string) string {
	if group == "" {
		group = t.Account.Spec.Cloud.Azure.ResourceGroup
	}
	return "/subscriptions/" + t.Account.Spec.Cloud.Azure.SubscriptionID + "/resourceGroups/" + group + "/providers/" + kind + "/" + name
}

// marketplaceImage returns the image of a URN, PUBLISHER:OFFER:SKU:VERSION, or nil.
func marketplaceImage(urn string) *infrav1.AzureMarketplaceImage {
	parts := strings.Split(urn, ":")
	if len(parts) != 4 {
		return nil
	}
	return &infrav1.AzureMarketplaceImage{Publisher: parts[0], Offer: parts[1], SKU: parts[2], Version: parts[3]}
}

// azureImage returns the image that the driver reports as this ID.
func azureImage(id string) (image infrav1.AzureImage) {
	switch image.Marketplace = marketplaceImage(id); {
	case image.Marketplace != nil:
	case strings.HasPrefix(id, "/CommunityGalleries/"):
		image.CommunityGalleryImageID = id
	case strings.HasPrefix(id, "/SharedGalleries/"):
		image.SharedGalleryImageID = id
	default:
		image.ID = id
	}
	return image
}

// imageOnAzure returns an image as the driver reports it, or "" if it may be several.
func imageOnAzure(i *infrav1.AzureImage) string {
	if m := i.Marketplace; m != nil && m.Version != "" && m.Version != "latest" {
		return strings.Join([]string{m.Publisher, m.Offer, m.SKU, m.Version}, ":")
	}
	return i.ID + i.CommunityGalleryImageID + i.SharedGalleryImageID // one is set
}
