// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"os"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/endpointcreds"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
)

// The credentials Secret's keys.
const (
	keyAccessKeyID  = "aws_access_key_id"
	keySecretKey    = "aws_secret_access_key"
	keySessionToken = "aws_session_token"
	keyRoleARN      = "aws_role_arn"
	keyIdentity     = "aws_web_identity_token"
)

// getCredentials is what a question for credentials is called that has no name of its own.
const getCredentials = "GetCredentials"

// sessionName is what CloudTrail shows as the name of whoever assumed a role.
const sessionName = "drover"

// login is how an account proves who it is.
type login struct {
	provider aws.CredentialsProvider
	secrets  redactor
}

// newLogin makes the account's: from its Secret, or for nil the manager's own, and then the role to
// act as. It makes no call.
func newLogin(account *infrav1.AWSAccount, secret map[string][]byte, base aws.Config) (login, error) {
	l, err := secretLogin(secret, base, account)
	if secret == nil {
		l, err = ambientLogin(base)
	}
	if err != nil {
		return login{}, err
	}
	if role := account.AssumeRole; role != nil {
		base.Credentials = l.cached()
		l.provider = stscreds.NewAssumeRoleProvider(newSTS(base, account), role.ARN, func(o *stscreds.AssumeRoleOptions) {
			o.RoleSessionName = sessionName
			if role.ExternalID != "" {
				o.ExternalID = &role.ExternalID
			}
		})
	}
	l.provider = l.cached()
	return l, nil
}

func secretLogin(secret map[string][]byte, base aws.Config, account *infrav1.AWSAccount) (login, error) {
	values := map[string]string{}
	for _, key := range []string{keyAccessKeyID, keySecretKey, keySessionToken, keyRoleARN, keyIdentity} {
		value := strings.TrimSpace(string(secret[key]))
		if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return login{}, cloud.Errorf(cloud.Unauthorized, "the credentials Secret's key %q holds characters that no credential has", key)
		}
		values[key] = value
	}
	needed := []string{keyAccessKeyID, keySecretKey}
	if values[keyIdentity] != "" && values[keyAccessKeyID] == "" {
		needed = []string{keyRoleARN, keyIdentity}
	}
	for _, key := range needed {
		if values[key] == "" {
			return login{}, cloud.Errorf(cloud.Unauthorized, "the credentials Secret's key %q is missing or empty", key)
		}
	}
	if _, given := secret[keySessionToken]; given && values[keySessionToken] == "" {
		return login{}, cloud.Errorf(cloud.Unauthorized, "the credentials Secret's key %q is empty: leave it out for lasting keys", keySessionToken)
	}
	l := login{
		secrets: newRedactor(values[keyIdentity], values[keySessionToken], values[keySecretKey], values[keyAccessKeyID]),
	}
	if needed[0] == keyAccessKeyID {
		l.provider = credentials.NewStaticCredentialsProvider(values[keyAccessKeyID], values[keySecretKey], values[keySessionToken])
		return l, nil
	}
	base.Credentials = aws.AnonymousCredentials{}
	l.provider = stscreds.NewWebIdentityRoleProvider(newSTS(base, account), values[keyRoleARN], identityToken(values[keyIdentity]),
		func(o *stscreds.WebIdentityRoleOptions) { o.RoleSessionName = sessionName })
	return l, nil
}

// ambientLogin is the SDK's own chain: environment, web identity (IRSA), Pod Identity, instance
// profile.
func ambientLogin(base aws.Config) (login, error) {
	if os.Getenv("AWS_CA_BUNDLE") != "" { // the SDK would trust it with a transport of its own, past the account's
		return login{}, cloud.Errorf(cloud.Unauthorized, "the manager's variable AWS_CA_BUNDLE is not supported: set SSL_CERT_FILE, which counts for all clouds")
	}
	chain, err := config.LoadDefaultConfig(context.Background(), config.WithRegion(base.Region),
		config.WithHTTPClient(base.HTTPClient), config.WithRetryer(base.Retryer),
		// Else Pod Identity's agent would be asked by a client of the SDK's own, past the account's
		// transport.
		config.WithEndpointCredentialOptions(func(o *endpointcreds.Options) { o.HTTPClient = base.HTTPClient }))
	if err != nil {
		return login{}, cloud.Errorf(cloud.Unauthorized, "the manager's own AWS configuration can't be read")
	}
	secrets := newRedactor(os.Getenv("AWS_SESSION_TOKEN"), os.Getenv("AWS_SECRET_ACCESS_KEY"))
	return login{provider: chain.Credentials, secrets: secrets}, nil
}

func newSTS(base aws.Config, account *infrav1.AWSAccount) *sts.Client {
	return sts.NewFromConfig(base, func(o *sts.Options) {
		o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = endpointKinds(account)
	})
}

// endpointKinds says which of AWS's endpoints to use.
func endpointKinds(account *infrav1.AWSAccount) (aws.FIPSEndpointState, aws.DualStackEndpointState) {
	fips, dual := aws.FIPSEndpointStateUnset, aws.DualStackEndpointStateUnset
	if account.FIPS {
		fips = aws.FIPSEndpointStateEnabled
	}
	if account.DualStack {
		dual = aws.DualStackEndpointStateEnabled
	}
	return fips, dual
}

// cached keeps what the provider says until shortly before its end.
func (l login) cached() aws.CredentialsProvider {
	return aws.NewCredentialsCache(explained{l.provider, l.secrets}, func(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = credentialsEarly })
}

// explained gives a provider's errors their code and says what they are about: the SDK wraps them
// in those of the call for which the credentials were wanted.
type explained struct {
	aws.CredentialsProvider
	secrets redactor
}

func (e explained) Retrieve(ctx context.Context) (aws.Credentials, error) {
	// The SDK's clients of the instance's metadata and of Pod Identity's agent name no call of
	// their own. Theirs would go by the name of the call for which the credentials are wanted, and
	// be held to its answer.
	ctx = awsmiddleware.SetServiceID(awsmiddleware.SetOperationName(ctx, getCredentials), "")
	got, err := e.CredentialsProvider.Retrieve(ctx)
	return got, e.secrets.typed("get credentials", err)
}

// identityToken is a web identity token that comes from the Secret. A new one makes a new driver.
type identityToken string

// GetIdentityToken implements stscreds.IdentityTokenRetriever.
func (t identityToken) GetIdentityToken() ([]byte, error) { return []byte(t), nil }
