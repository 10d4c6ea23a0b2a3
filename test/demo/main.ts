// npm run demo. With --user-space the guests are not tried.

import { NoGuestError } from '../lab/base/errors.js'
import { guestDemo } from '../lab/demo.js'
import { userSpaceDemo } from './user-space.js'

async function demo(): Promise<void> {
  if (!process.argv.includes('--user-space')) {
    try {
      await guestDemo()
      return
    } catch (failure) {
      if (!(failure instanceof NoGuestError)) throw failure
      console.log(`demo: no guest can run here: ${failure.message}`)
    }
  }
  console.log('demo: showing the user-space form: the same programs over software RDMA, no kernel driver')
  await userSpaceDemo()
}

demo().catch((failure: Error) => {
  console.error(`demo: ${failure.message}`)
  process.exitCode = 1
})
