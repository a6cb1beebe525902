// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AuthProvider is a source of users other than the hub's own User objects: an OpenID Connect provider, an LDAP
// directory, GitHub, or an issuer of tokens for workloads. In bindings, the names of its users and groups are prefixed
// with the AuthProvider's name, as in "<name>:<user>". Do not use a name that already serves as a prefix of user or
// group names in a member's RBAC, such as kubeadm in kubeadm:cluster-admins. The Secrets that an AuthProvider refers to
// must be in the manager's namespace and have the label "cluster.drover.dev/secret: provider".
//
// Users can sign in only if signIn.issuer is set in the manager's configuration. Anyone who can write AuthProviders can
// impersonate any provider's users in every member.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=drover,shortName=dap
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.status.type`
// +kubebuilder:printcolumn:name="Disabled",type=boolean,JSONPath=`.spec.disabled`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 63",message="metadata.name must be a DNS label: at most 63 lower-case letters, digits and dashes",fieldPath=.metadata
// +kubebuilder:validation:XValidation:rule="!(self.metadata.name in ['hub', 'system', 'local', 'kubeadm', 'eks'])",message="metadata.name must not be hub, system, local, kubeadm or eks: these prefixes are used for other users",fieldPath=.metadata
type AuthProvider struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The name is the prefix of user and group names, and must be a DNS label.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec configures the provider.
	// +required
	Spec AuthProviderSpec `json:"spec"`

	// status reports whether the provider can be used.
	//
	// Ready is True with reason Reachable or Disabled, and False with reason SecretMissing, Invalid or Unreachable.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for the Drover manager, which requires signIn.issuer in its configuration", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status AuthProviderStatus `json:"status,omitzero"`
}

// AuthProviderList is a list of AuthProviders.
//
// +kubebuilder:object:root=true
type AuthProviderList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AuthProvider `json:"items"`
}

// AuthProviderSpec configures a provider. Exactly one of oidc, ldap, github and jwt must be set.
//
// +kubebuilder:validation:XValidation:rule="(has(self.oidc) ? 1 : 0) + (has(self.ldap) ? 1 : 0) + (has(self.github) ? 1 : 0) + (has(self.jwt) ? 1 : 0) == 1",message="exactly one of oidc, ldap, github and jwt must be set"
// +kubebuilder:validation:XValidation:rule="(has(self.oidc) && has(oldSelf.oidc)) || (has(self.ldap) && has(oldSelf.ldap)) || (has(self.github) && has(oldSelf.github)) || (has(self.jwt) && has(oldSelf.jwt))",message="the type of a provider cannot be changed, because its users would become different users: create another AuthProvider"
type AuthProviderSpec struct {
	// disabled locks out the provider's users immediately: logins and all existing tokens are rejected, and requests in
	// progress end within 30 seconds. The default is false.
	// +optional
	Disabled bool `json:"disabled,omitempty"`

	// oidc configures an OpenID Connect provider.
	// +optional
	OIDC *OIDCProvider `json:"oidc,omitempty"`

	// ldap configures an LDAP directory, such as OpenLDAP, FreeIPA or Active Directory.
	// +optional
	LDAP *LDAPProvider `json:"ldap,omitempty"`

	// github configures sign-in through github.com or a GitHub Enterprise Server.
	// +optional
	GitHub *GitHubProvider `json:"github,omitempty"`

	// jwt configures a token issuer for workloads, such as GitHub Actions, GitLab CI or the ServiceAccounts of another
	// cluster.
	// +optional
	JWT *JWTProvider `json:"jwt,omitempty"`
}

// ProviderSecret names a key of a Secret in the manager's namespace. The Secret must have the label
// "cluster.drover.dev/secret: provider".
type ProviderSecret struct {
	// name is the name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	Name string `json:"name"`

	// key is the key in the Secret's data.
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +kubebuilder:validation:MaxLength=253
	// +required
	Key string `json:"key"`
}

// OIDCProvider is an OpenID Connect provider. Register <signIn.issuer>/v1/auth/callback/<name> with the provider as the
// redirect URI.
type OIDCProvider struct {
	// url is the issuer URL. The hub reads the discovery document from <url>/.well-known/openid-configuration.
	// +kubebuilder:validation:XValidation:rule=`self.matches('^https://[^\\s/?#@]+(/[^\\s?#]*)?$')`,message="must be an https URL without a user, query or fragment"
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	URL string `json:"url"`

	// caBundle is the PEM-encoded CA bundle for verifying the provider's certificate. By default, the CAs in the manager's
	// image are trusted.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	CABundle string `json:"caBundle,omitempty"`

	// clientID is the OAuth client ID that the hub uses with this provider.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	ClientID string `json:"clientID"`

	// clientSecret is the OAuth client secret that the hub uses with this provider.
	// +required
	ClientSecret ProviderSecret `json:"clientSecret"`

	// scopes lists the scopes that the hub requests in addition to openid. Add offline_access if the provider issues
	// refresh tokens only with this scope. Without a refresh token, users must sign in again when their tokens expire. For
	// Google, the hub sends access_type=offline instead. The scopes default to profile and offline_access, or to profile
	// alone if the provider's scopes_supported does not list offline_access.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Pattern=`^[!#-\[\]-~]+$`
	// +kubebuilder:validation:items:MaxLength=128
	// +listType=set
	// +optional
	Scopes []string `json:"scopes,omitempty"`

	// prompt is the prompt parameter of each login request: login, consent, select_account, or several of these values
	// separated by spaces. If it is empty, the provider decides whether to prompt the user. Some providers reject the
	// value consent, for example because their users are not allowed to give consent. prompt defaults to consent if
	// refresh tokens are requested, as OpenID Connect requires, and to "" otherwise.
	// +kubebuilder:validation:Pattern=`^((login|consent|select_account)( (login|consent|select_account))*)?$`
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Prompt *string `json:"prompt,omitempty"`

	// lowercaseNames converts the letters A to Z in names to lower case. Set it to true only if the provider's names are
	// case-insensitive, as in Entra ID. With any other provider, a user could gain the rights of another user whose name
	// differs only in case. If it is false, names with upper-case letters are rejected. The default is false.
	// +optional
	LowercaseNames bool `json:"lowercaseNames,omitempty"`

	// nameClaim is the claim that contains the user's name. The name must be unique within the provider and must never be
	// reassigned to another user. If nameClaim is email, the provider must report the address as verified. nameClaim
	// defaults to preferred_username.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	NameClaim string `json:"nameClaim,omitempty"`

	// groupsClaim is the claim that contains the user's groups. Its value is a list of names or a single name. The
	// default is groups.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	GroupsClaim string `json:"groupsClaim,omitempty"`

	// allowedGroups restricts sign-in to users who belong to at least one of these groups. By default, every user of the
	// provider can sign in.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +listType=set
	// +optional
	AllowedGroups []string `json:"allowedGroups,omitempty"`
}

// LDAPProvider is an LDAP directory. All connections use TLS.
type LDAPProvider struct {
	// servers lists the URLs of the directory's servers, in the order in which the hub tries them. A URL is either
	// ldaps://host[:port], or ldap://host[:port] for StartTLS.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:XValidation:rule=`self.matches('^ldaps?://[^\\s/?#@]+$')`,message="must be ldaps://<host> or ldap://<host>, with or without a port"
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=atomic
	// +required
	Servers []string `json:"servers"`

	// caBundle is the PEM-encoded CA bundle for verifying the servers' certificates. By default, the CAs in the manager's
	// image are trusted.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	CABundle string `json:"caBundle,omitempty"`

	// bind configures the account that the hub uses to search the directory.
	// +required
	Bind LDAPBind `json:"bind"`

	// userSearch configures the search for users.
	// +required
	UserSearch LDAPUserSearch `json:"userSearch"`

	// groupSearch configures the search for a user's groups.
	// +required
	GroupSearch LDAPGroupSearch `json:"groupSearch"`

	// allowedGroups restricts sign-in to users who belong to at least one of these groups. By default, every user that the
	// search finds can sign in.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +listType=set
	// +optional
	AllowedGroups []string `json:"allowedGroups,omitempty"`
}

// LDAPBind contains the credentials of the account that the hub uses to search the directory.
type LDAPBind struct {
	// dn is the DN of the account, or another name that the server accepts in its place, such as drover@example.com for an
	// Active Directory account.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	DN string `json:"dn"`

	// passwordSecret refers to the Secret key with the account's password.
	// +required
	PasswordSecret ProviderSecret `json:"passwordSecret"`
}

// LDAPUserSearch configures the search for users.
type LDAPUserSearch struct {
	// base is the DN of the subtree that contains the users.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	Base string `json:"base"`

	// filter is the LDAP filter that finds a user, such as (&(objectClass=person)(uid={name})). {name} is replaced by the
	// name that the user entered, escaped for use in a filter.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	Filter string `json:"filter"`

	// idAttribute is the attribute that uniquely identifies a user, such as entryUUID, ipaUniqueID or objectGUID. Its
	// values must never be reused for other users.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	IDAttribute string `json:"idAttribute"`

	// nameAttribute is the attribute that holds the name of a user, such as uid or sAMAccountName. Its values must be
	// unique in the subtree and are converted to lower case.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	NameAttribute string `json:"nameAttribute"`
}

// LDAPGroupSource selects the source of a user's groups.
//
// +kubebuilder:validation:Enum=TokenGroups;MemberOf;Search
type LDAPGroupSource string

// LDAPGroupSearch configures the search for a user's groups.
//
// +kubebuilder:validation:XValidation:rule="(self.source == 'Search') == has(self.filter)",message="set filter if, and only if, source is Search"
type LDAPGroupSearch struct {
	// source selects the source of the groups. Use TokenGroups for Active Directory, MemberOf for FreeIPA or for
	// OpenLDAP with the memberof overlay, and Search for any other directory.
	// +required
	Source LDAPGroupSource `json:"source"`

	// base is the DN of the subtree that contains the groups. Groups outside this subtree are ignored.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	Base string `json:"base"`

	// filter is the LDAP filter that finds the groups of a user, such as (member={dn}). {dn} is replaced by the DN of the
	// user and {name} by the user's name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	Filter string `json:"filter,omitempty"`

	// nameAttribute is the attribute that holds the name of a group. Its values must be unique in the subtree and are
	// converted to lower case. The default is cn.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	NameAttribute string `json:"nameAttribute,omitempty"`

	// depth is the number of levels of nested groups to follow. If depth is 0, the default, only the user's direct
	// groups are found. With TokenGroups, all levels are always included.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	// +optional
	Depth int32 `json:"depth,omitempty"`
}

// GitHubProvider configures sign-in through github.com or a GitHub Enterprise Server. It requires an OAuth app with the
// callback URL <signIn.issuer>/v1/auth/callback/<name>.
//
// +kubebuilder:validation:XValidation:rule="has(self.organizations) && size(self.organizations) > 0 || has(self.anyUser) && self.anyUser",message="set organizations to restrict sign-in to their members, or set anyUser"
type GitHubProvider struct {
	// url is the URL of a GitHub Enterprise Server. The default is https://github.com.
	// +kubebuilder:validation:XValidation:rule=`self.matches('^https://[^\\s/?#@]+/?$')`,message="must be the https URL of a host, without a path, user, query or fragment"
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	URL string `json:"url,omitempty"`

	// caBundle is the PEM-encoded CA bundle for verifying GitHub's certificate. By default, the CAs in the manager's image
	// are trusted.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	CABundle string `json:"caBundle,omitempty"`

	// clientID is the client ID of the OAuth app.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	ClientID string `json:"clientID"`

	// clientSecret is the client secret of the OAuth app.
	// +required
	ClientSecret ProviderSecret `json:"clientSecret"`

	// organizations restricts sign-in to members of at least one of these organizations. A user's groups are the listed
	// organizations that the user belongs to, and the user's teams in them. A team's group is named organization/team. At
	// most 64 organizations are allowed. This field is required unless anyUser is set.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +listType=set
	// +optional
	Organizations []string `json:"organizations,omitempty"`

	// teams further restricts sign-in to members of at least one of these teams, in the format organization/team. By
	// default, all members of the organizations can sign in.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=3
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +listType=set
	// +optional
	Teams []string `json:"teams,omitempty"`

	// anyUser allows every user to sign in, including users who do not belong to any organization. On github.com, this
	// means everyone with a GitHub account. anyUser cannot be combined with organizations. The default is false.
	// +optional
	AnyUser bool `json:"anyUser,omitempty"`
}

// AuthProviderStatus is the observed state of an AuthProvider.
type AuthProviderStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// type is the type of the provider: OIDC, LDAP, GitHub or JWT.
	// +optional
	Type string `json:"type,omitempty"`

	// conditions contains Ready. It also contains Stalled while manual action is required.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Reasons of an AuthProvider's Ready condition, in addition to ReasonDisabled.
const (
	// ReasonReachable means that the provider responds.
	ReasonReachable = "Reachable"
	// ReasonSecretMissing means that a required Secret does not exist, or lacks the required key or label.
	ReasonSecretMissing = "SecretMissing"
	// ReasonInvalid means that the spec cannot be used. The message says why.
	ReasonInvalid = "Invalid"
	// ReasonUnreachable means that the provider does not respond, or that its response is not valid for a provider of this
	// type.
	ReasonUnreachable = "Unreachable"
)
