// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// JWTProvider is an issuer whose tokens machines send as they are, in the shape of Kubernetes' JWTAuthenticator. There
// is no login and no session: a token is worth what it says until it expires. The names of users and groups have the
// name of the provider before them, and no other prefix.
type JWTProvider struct {
	// issuer says which tokens are accepted.
	// +required
	Issuer JWTIssuer `json:"issuer"`

	// claimMappings say who a token's user is.
	// +required
	ClaimMappings JWTClaimMappings `json:"claimMappings"`

	// claimValidationRules must all be true of a token.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	ClaimValidationRules []JWTClaimRule `json:"claimValidationRules,omitempty"`

	// userValidationRules must all be true of the user of a token.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	UserValidationRules []JWTUserRule `json:"userValidationRules,omitempty"`

	// maxTokenLifetime is the longest time from iat to exp of a token. Default 1h.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('24h')",message="must be 1m to 24h"
	// +optional
	MaxTokenLifetime *metav1.Duration `json:"maxTokenLifetime,omitempty"`
}

// JWTIssuer says which tokens are accepted.
type JWTIssuer struct {
	// url is that of the issuer, which the claim iss and the discovery document must have. The document is at
	// <url>/.well-known/openid-configuration.
	// +kubebuilder:validation:XValidation:rule=`self.matches('^https://[^\\s/?#@]+(/[^\\s?#]*)?$')`,message="must be an https URL without user, query and fragment"
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	URL string `json:"url"`

	// discoveryURL is where the discovery document is, if it is elsewhere.
	// +kubebuilder:validation:XValidation:rule=`self.matches('^https://[^\\s/?#@]+(/[^\\s?#]*)?$')`,message="must be an https URL without user, query and fragment"
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	DiscoveryURL string `json:"discoveryURL,omitempty"`

	// certificateAuthority has the certificate authorities, in PEM, that the issuer's certificates are checked against.
	// Default those of the system.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	CertificateAuthority string `json:"certificateAuthority,omitempty"`

	// audiences are those of which a token must have one. Take one that no other service accepts, such as the URL of the
	// hub.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +listType=set
	// +required
	Audiences []string `json:"audiences"`

	// audienceMatchPolicy is MatchAny, which is the default: one of the audiences is enough.
	// +optional
	AudienceMatchPolicy JWTAudienceMatchPolicy `json:"audienceMatchPolicy,omitempty"`
}

// JWTAudienceMatchPolicy says how many of the audiences a token must have.
//
// +kubebuilder:validation:Enum=MatchAny
type JWTAudienceMatchPolicy string

// JWTClaimMappings say who a token's user is.
type JWTClaimMappings struct {
	// username is a text that has the form of a name, and is not given to another machine.
	// +required
	Username JWTClaimOrExpression `json:"username"`

	// groups are a text or a list of texts. Default none.
	// +optional
	Groups *JWTClaimOrExpression `json:"groups,omitempty"`

	// uid is a text that is never given to another machine. Default the claim sub.
	// +optional
	UID *JWTClaimOrExpression `json:"uid,omitempty"`
}

// JWTClaimOrExpression is a value of a token.
//
// +kubebuilder:validation:XValidation:rule="has(self.claim) != has(self.expression)",message="exactly one of claim and expression must be set"
type JWTClaimOrExpression struct {
	// claim is the name of the claim that is the value. The claim email counts if email_verified is true.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	Claim string `json:"claim,omitempty"`

	// expression is one of CEL, with the variable claims, that makes the value.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	Expression string `json:"expression,omitempty"`
}

// JWTClaimRule is true of a token, or the token is refused.
//
// +kubebuilder:validation:XValidation:rule="has(self.claim) != has(self.expression)",message="exactly one of claim and expression must be set"
// +kubebuilder:validation:XValidation:rule="has(self.claim) == has(self.requiredValue) && (!has(self.message) || has(self.expression))",message="requiredValue belongs to claim, and message to expression"
type JWTClaimRule struct {
	// claim is the name of a claim that must have the text requiredValue.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	Claim string `json:"claim,omitempty"`

	// requiredValue is what the claim must be.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	RequiredValue string `json:"requiredValue,omitempty"`

	// expression is one of CEL, with the variable claims, that must be true.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	Expression string `json:"expression,omitempty"`

	// message says to whoever sends a token why it is refused.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	Message string `json:"message,omitempty"`
}

// JWTUserRule is true of the user of a token, or the token is refused.
type JWTUserRule struct {
	// expression is one of CEL, with the variable user (username, uid, groups, with the name of the provider), that must
	// be true.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	Expression string `json:"expression"`

	// message says to whoever sends a token why it is refused.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	Message string `json:"message,omitempty"`
}
