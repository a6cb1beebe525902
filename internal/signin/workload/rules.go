// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"k8s.io/apimachinery/pkg/util/version"
	kubecel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	v1 "github.com/drover-dev/drover/api/v1"
)

const (
	// costLimit is the maximum cost of one expression. It corresponds to about 10 ms of CPU time. Anyone with a signed
	// token can cause this cost.
	costLimit = 100_000
	// rulesLimit is the time limit for evaluating all expressions for a token.
	rulesLimit = time.Second
	maxGroups  = 1000
	maxUID     = 255
)

// compiler is the compiler from Kubernetes structured authentication, with a lower cost limit for expressions.
var compiler = sync.OnceValues(func() (kubecel.Compiler, error) {
	env, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0), ProgramOptions: []cel.ProgramOption{cel.CostLimit(costLimit)},
	})
	if err != nil {
		return nil, fmt.Errorf("create the compiler of expressions: %w", err)
	}
	return kubecel.NewCompiler(env), nil
})

// value describes where a string or a list of strings comes from: a claim or an expression.
type value struct {
	claim string
	kubecel.ClaimsMapper
}

// rules holds the compiled rules of a provider for claims and users.
type rules struct {
	required            []v1.JWTClaimRule // rules that require a value for a claim
	claims              kubecel.ClaimsMapper
	username, uid       value
	groups              *value
	users               kubecel.UserMapper
	claimsSay, usersSay []string // the messages of the rules
}

// compile compiles the rules of a provider. The error names the expression that cannot be compiled.
func compile(spec v1.JWTProvider) (r rules, err error) {
	c, err := compiler()
	if err != nil {
		return r, err
	}
	if r.username, err = compileValue(c, "claimMappings.username", spec.ClaimMappings.Username); err != nil {
		return r, err
	}
	r.uid = value{claim: "sub"}
	if spec.ClaimMappings.UID != nil {
		if r.uid, err = compileValue(c, "claimMappings.uid", *spec.ClaimMappings.UID); err != nil {
			return r, err
		}
	}
	if spec.ClaimMappings.Groups != nil {
		groups, err := compileValue(c, "claimMappings.groups", *spec.ClaimMappings.Groups)
		if err != nil {
			return r, err
		}
		r.groups = &groups
	}
	var onClaims, onUsers []kubecel.CompilationResult
	for i, rule := range spec.ClaimValidationRules {
		if rule.Claim != "" {
			r.required = append(r.required, rule)
			continue
		}
		one, err := c.CompileClaimsExpression(&kubecel.ClaimValidationCondition{Expression: rule.Expression})
		if err != nil {
			return r, fmt.Errorf("claimValidationRules[%d]: %w", i, err)
		}
		onClaims, r.claimsSay = append(onClaims, one), append(r.claimsSay, rule.Message)
	}
	for i, rule := range spec.UserValidationRules {
		one, err := c.CompileUserExpression(&kubecel.UserValidationCondition{Expression: rule.Expression})
		if err != nil {
			return r, fmt.Errorf("userValidationRules[%d]: %w", i, err)
		}
		onUsers, r.usersSay = append(onUsers, one), append(r.usersSay, rule.Message)
	}
	r.claims, r.users = kubecel.NewClaimsMapper(onClaims), kubecel.NewUserMapper(onUsers)
	return r, nil
}

func compileValue(c kubecel.Compiler, field string, m v1.JWTClaimOrExpression) (value, error) {
	if (m.Claim == "") == (m.Expression == "") {
		return value{}, fmt.Errorf("%s: exactly one of claim and expression must be set", field)
	}
	if m.Claim != "" {
		return value{claim: m.Claim}, nil
	}
	one, err := c.CompileClaimsExpression(&kubecel.ClaimMappingExpression{Expression: m.Expression})
	if err != nil {
		return value{}, fmt.Errorf("%s: %w", field, err)
	}
	return value{ClaimsMapper: kubecel.NewClaimsMapper([]kubecel.CompilationResult{one})}, nil
}

// user returns the user that the claims describe, or an error if a rule refuses the user. Errors contain no claims.
func (r rules) user(ctx context.Context, provider string, claims map[string]any) (User, error) {
	ctx, cancel := context.WithTimeout(ctx, rulesLimit)
	defer cancel()
	claims = withoutUnverified(claims)
	for _, rule := range r.required {
		if text, ok := claims[rule.Claim].(string); !ok || text != rule.RequiredValue {
			return User{}, fmt.Errorf("the claim %s does not have the value that the provider requires", rule.Claim)
		}
	}
	mapped := types.NewStringInterfaceMap(types.DefaultTypeAdapter, claims)
	results, err := r.claims.EvalClaimMappings(ctx, mapped)
	if err := verdict(results, r.claimsSay, err); err != nil {
		return User{}, err
	}
	var u User
	if u.Name, err = r.username.text(ctx, claims); err != nil {
		return User{}, fmt.Errorf("the name of the user: %w", err)
	}
	if u.UID, err = r.uid.text(ctx, claims); err != nil || len(u.UID) > maxUID {
		return User{}, errors.Join(errors.New("the uid of the user is not a string, or is too long"), err)
	}
	if r.groups != nil {
		if u.Groups, err = r.groups.list(ctx, claims); err != nil {
			return User{}, fmt.Errorf("the groups of the user: %w", err)
		}
	}
	principals := make([]string, 0, len(u.Groups))
	for _, group := range u.Groups {
		principals = append(principals, provider+":"+group)
	}
	results, err = r.users.EvalUser(ctx, types.NewStringInterfaceMap(types.DefaultTypeAdapter, map[string]any{
		"username": provider + ":" + u.Name, "uid": u.UID, "groups": principals, "extra": map[string][]string{},
	}))
	return u, verdict(results, r.usersSay, err)
}

// claimEmail is the claim with the user's email address. Many issuers let users choose their own address.
const claimEmail = "email"

// withoutUnverified removes the email address from claims if the issuer has not verified it, so that rules and
// expressions cannot use it.
func withoutUnverified(claims map[string]any) map[string]any {
	if verified, _ := claims["email_verified"].(bool); verified {
		return claims
	}
	all := maps.Clone(claims)
	delete(all, claimEmail)
	return all
}

// verdict returns an error with the message of the first rule that the token does not satisfy.
func verdict(results []kubecel.EvaluationResult, messages []string, err error) error {
	if err != nil {
		return errors.New("a rule of the provider cannot be evaluated for the token, or takes too long")
	}
	for i, result := range results {
		if result.EvalResult == types.True {
			continue
		}
		if messages[i] != "" {
			return errors.New(messages[i])
		}
		return fmt.Errorf("the token does not satisfy rule %d of the provider", i)
	}
	return nil
}

func (v value) eval(ctx context.Context, claims map[string]any) (any, error) {
	if v.ClaimsMapper == nil {
		if _, verified := claims[claimEmail]; v.claim == claimEmail && !verified {
			return nil, errors.New("the issuer has not verified the email address")
		}
		return claims[v.claim], nil
	}
	result, err := v.EvalClaimMapping(ctx, types.NewStringInterfaceMap(types.DefaultTypeAdapter, claims))
	if err != nil {
		return nil, errors.New("the expression cannot be evaluated for the token, or takes too long")
	}
	return native(result.EvalResult), nil
}

func (v value) text(ctx context.Context, claims map[string]any) (string, error) {
	got, err := v.eval(ctx, claims)
	if err != nil {
		return "", err
	}
	text, ok := got.(string)
	if !ok || text == "" {
		return "", errors.New("it is not a string, or is empty")
	}
	return text, nil
}

// list returns a value as a list of strings. It returns an empty list for a missing value, an empty string or an empty
// list.
func (v value) list(ctx context.Context, claims map[string]any) ([]string, error) {
	got, err := v.eval(ctx, claims)
	if err != nil {
		return nil, err
	}
	var all []any
	switch got := got.(type) {
	case nil:
	case string:
		all = []any{got}
	case []any:
		all = got
	default:
		return nil, errors.New("they are not a list of strings")
	}
	if len(all) > maxGroups {
		return nil, fmt.Errorf("there are more than %d", maxGroups)
	}
	var texts []string
	for _, one := range all {
		text, ok := one.(string)
		if !ok {
			return nil, errors.New("one of them is not a string")
		}
		if text != "" {
			texts = append(texts, text)
		}
	}
	return texts, nil
}

// native converts a CEL result to a string, a list or nil. It returns results of other types unchanged.
func native(result ref.Val) any {
	switch result := result.(type) {
	case types.Null:
		return nil
	case types.String:
		return string(result)
	}
	list, ok := result.(traits.Lister)
	if !ok || result.Type() != types.ListType {
		return result
	}
	size, ok := list.Size().(types.Int)
	if !ok || size > maxGroups+1 {
		size = maxGroups + 1
	}
	all := make([]any, 0, size)
	for i := range size {
		all = append(all, native(list.Get(i)))
	}
	return all
}
