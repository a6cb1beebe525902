// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// A client of openid-client drives the issuer: code with PKCE, refresh, reuse, revocation, device code, token exchange. Where a browser or another client is needed it writes a
// line of JSON, and reads the answer as a line. It ends with code 0 if all went as the specifications say.

import assert from 'node:assert/strict'
import { createInterface } from 'node:readline'
import * as client from 'openid-client'

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()

async function ask(what, argument) {
  process.stdout.write(JSON.stringify({ what, argument: String(argument) }) + '\n')
  const { value, done } = await lines.next()
  assert(!done, `no answer to ${what}`)
  return value
}

const refused = (code) => (error) => {
  assert.equal(error.error, code, `${error.name}: ${error.message}`)
  return true
}

const config = await client.discovery(new URL(process.env.ISSUER), 'kubectl', undefined, client.None())
const redirect_uri = 'http://127.0.0.1:8000/callback'

async function signIn() {
  const pkceCodeVerifier = client.randomPKCECodeVerifier(), expectedState = client.randomState(), expectedNonce = client.randomNonce()
  const to = client.buildAuthorizationUrl(config, {
    redirect_uri, scope: 'openid offline_access', prompt: 'consent', state: expectedState, nonce: expectedNonce,
    code_challenge: await client.calculatePKCECodeChallenge(pkceCodeVerifier), code_challenge_method: 'S256',
  })
  const back = new URL(await ask('sign in', to))
  return client.authorizationCodeGrant(config, back, { pkceCodeVerifier, expectedState, expectedNonce, idTokenExpected: true })
}

// Code with PKCE, and refresh. The library checks signature, issuer, audience, nonce, and the issuer in the redirect.
const first = await signIn()
assert.equal(await ask('user of', first.access_token), 'local:' + process.env.USER_NAME)
const second = await client.refreshTokenGrant(config, first.refresh_token)
assert.notEqual(second.refresh_token, first.refresh_token)
for (const claim of ['sub', 'sid', 'auth_time']) assert.equal(second.claims()[claim], first.claims()[claim], claim)
assert.equal(second.claims().nonce, undefined)

// A response that was lost, and a token that comes again.
const again = await client.refreshTokenGrant(config, first.refresh_token)
assert.equal(again.refresh_token, second.refresh_token)
await ask('wait', 120)
await assert.rejects(client.refreshTokenGrant(config, first.refresh_token), refused('invalid_grant'))
await assert.rejects(client.refreshTokenGrant(config, second.refresh_token), refused('invalid_grant'))

// Revocation.
const third = await signIn()
await client.tokenRevocation(config, third.refresh_token, { token_type_hint: 'refresh_token' })
assert.equal(await ask('user of', third.access_token), '')
await assert.rejects(client.refreshTokenGrant(config, third.refresh_token), refused('invalid_grant'))

// The device code. The library asks, is told that no user has approved, and asks again.
const device = await client.initiateDeviceAuthorization(config, { scope: 'openid offline_access' })
assert.match(device.user_code, /^[B-Z]{4}-[B-Z]{4}-[B-Z]{4}$/)
let polls = 0
const counting = (...request) => { polls++; return fetch(...request) }
config[client.customFetch] = counting
const polling = client.pollDeviceAuthorizationGrant(config, device)
while (polls === 0) await new Promise((wake) => setTimeout(wake, 50))
assert.equal(await ask('approve', device.verification_uri_complete), '200')
const fourth = await polling
assert(polls >= 2, 'the device was not told to wait')
config[client.customFetch] = undefined
assert.equal(await ask('user of', fourth.access_token), 'local:' + process.env.USER_NAME)
await client.refreshTokenGrant(config, fourth.refresh_token)
await assert.rejects(client.pollDeviceAuthorizationGrant(config, device), refused('invalid_grant'))

// Token exchange: a token of one cluster, which gives no other.
const access_token = 'urn:ietf:params:oauth:token-type:access_token', exchange = 'urn:ietf:params:oauth:grant-type:token-exchange'
assert(config.serverMetadata().grant_types_supported.includes(exchange))
const narrow = (subject_token, more) =>
  client.genericGrantRequest(config, exchange, { subject_token, subject_token_type: access_token, audience: 'cluster:team/prod', ...more })
const fifth = await signIn()
const one = await narrow(fifth.access_token)
assert.equal(one.issued_token_type, access_token)
assert.equal(one.id_token, undefined)
assert.equal(one.refresh_token, undefined)
assert.equal(await ask('user in team/prod of', one.access_token), 'local:' + process.env.USER_NAME)
assert.equal(await ask('user of', one.access_token), '')
await assert.rejects(narrow(one.access_token), refused('invalid_request'))
await assert.rejects(narrow(fifth.access_token, { audience: 'kubectl' }), refused('invalid_target'))
await assert.rejects(narrow(fifth.access_token, { actor_token: fifth.access_token, actor_token_type: access_token }), refused('invalid_request'))
await client.tokenRevocation(config, fifth.refresh_token)
assert.equal(await ask('user in team/prod of', one.access_token), '')

await ask('done', polls)
process.exit(0)
