// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// JWTProvider configures an issuer of tokens that workloads send directly to the hub. The fields are modeled on
// JWTAuthenticator in Kubernetes' AuthenticationConfiguration, except that the prefix of user and group names is always
// the AuthProvider's name. There are no logins and no sessions, so a token is valid until it expires.
type JWTProvider struct {
	// issuer identifies the issuer and the tokens to accept.
	// +required
	Issuer JWTIssuer `json:"issuer"`

	// claimMappings defines how the claims of a token are mapped to a user.
	// +required
	ClaimMappings JWTClaimMappings `json:"claimMappings"`

	// claimValidationRules lists up to 16 rules that the claims of a token must satisfy.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	ClaimValidationRules []JWTClaimRule `json:"claimValidationRules,omitempty"`

	// userValidationRules lists up to 16 rules that the user must satisfy after claimMappings has been applied.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	UserValidationRules []JWTUserRule `json:"userValidationRules,omitempty"`

	// maxTokenLifetime is the maximum accepted lifetime of a token. The lifetime is the time between the iat and exp
	// claims. The valid range is 1m to 24h. The default is 1h.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('24h')",message="must be between 1m and 24h"
	// +optional
	MaxTokenLifetime *metav1.Duration `json:"maxTokenLifetime,omitempty"`
}

// JWTIssuer identifies a token issuer and the tokens to accept from it.
type JWTIssuer struct {
	// url is the https URL of the issuer. It must match the iss claim of tokens and the issuer in the discovery document.
	// Unless discoveryURL is set, the hub reads the discovery document from <url>/.well-known/openid-configuration.
	// +kubebuilder:validation:XValidation:rule=`self.matches('^https://[^\\s/?#@]+(/[^\\s?#]*)?$')`,message="must be an https URL without a user, query or fragment"
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	URL string `json:"url"`

	// discoveryURL is the URL of the discovery document. Set it only if the document is not at the default location
	// below url.
	// +kubebuilder:validation:XValidation:rule=`self.matches('^https://[^\\s/?#@]+(/[^\\s?#]*)?$')`,message="must be an https URL without a user, query or fragment"
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	DiscoveryURL string `json:"discoveryURL,omitempty"`

	// certificateAuthority is the PEM-encoded CA bundle for verifying the issuer's certificate. By default, the CAs in the
	// manager's image are trusted.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	CertificateAuthority string `json:"certificateAuthority,omitempty"`

	// audiences lists the accepted audiences. A token must contain at least one of them. Choose an audience that no other
	// service accepts, such as the URL of the hub.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +listType=set
	// +required
	Audiences []string `json:"audiences"`

	// audienceMatchPolicy defines how the audiences of a token are matched. MatchAny is the default and the only
	// allowed value. It accepts a token that contains at least one of the audiences.
	// +optional
	AudienceMatchPolicy JWTAudienceMatchPolicy `json:"audienceMatchPolicy,omitempty"`
}

// JWTAudienceMatchPolicy defines how many of the accepted audiences a token must contain.
//
// +kubebuilder:validation:Enum=MatchAny
type JWTAudienceMatchPolicy string

// JWTClaimMappings defines how the claims of a token are mapped to a user.
type JWTClaimMappings struct {
	// username selects the user's name. The value must be a string and a valid name. The issuer must not assign the
	// same value to two different workloads.
	// +required
	Username JWTClaimOrExpression `json:"username"`

	// groups selects the user's groups. The value must be a string or a list of strings. By default, the user has no
	// groups.
	// +optional
	Groups *JWTClaimOrExpression `json:"groups,omitempty"`

	// uid selects the user's UID. The value must be a string. The issuer must never assign the same value to two different
	// workloads. The default is the sub claim.
	// +optional
	UID *JWTClaimOrExpression `json:"uid,omitempty"`
}

// JWTClaimOrExpression selects a value from the claims of a token.
//
// +kubebuilder:validation:XValidation:rule="has(self.claim) != has(self.expression)",message="exactly one of claim and expression must be set"
type JWTClaimOrExpression struct {
	// claim is the name of the claim that contains the value. The email claim is accepted only if email_verified is true.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	Claim string `json:"claim,omitempty"`

	// expression is a CEL expression that evaluates to the value. The claims variable contains the claims of the token.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	Expression string `json:"expression,omitempty"`
}

// JWTClaimRule is a rule for the claims of a token. A token that does not satisfy the rule is rejected.
//
// +kubebuilder:validation:XValidation:rule="has(self.claim) != has(self.expression)",message="exactly one of claim and expression must be set"
// +kubebuilder:validation:XValidation:rule="has(self.claim) == has(self.requiredValue) && (!has(self.message) || has(self.expression))",message="requiredValue requires claim, and message requires expression"
type JWTClaimRule struct {
	// claim is the name of a claim whose value must be equal to requiredValue.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	Claim string `json:"claim,omitempty"`

	// requiredValue is the required value of the claim.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	RequiredValue string `json:"requiredValue,omitempty"`

	// expression is a CEL expression that must evaluate to true. The claims variable contains the claims of the token.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	Expression string `json:"expression,omitempty"`

	// message is the error message that is returned if expression does not evaluate to true.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	Message string `json:"message,omitempty"`
}

// JWTUserRule is a rule for the user of a token. If the user does not satisfy the rule, the token is rejected.
type JWTUserRule struct {
	// expression is a CEL expression that must evaluate to true. The user variable has the fields username, uid and
	// groups. User and group names include the provider's prefix.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	Expression string `json:"expression"`

	// message is the error message that is returned if expression does not evaluate to true.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	Message string `json:"message,omitempty"`
}
