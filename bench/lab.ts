// What needs real kernel drivers is measured in the lab's guests, by the lab.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

export async function lab(): Promise<void> {
  const runner = fileURLToPath(new URL('../../test/dist/lab/run.js', import.meta.url))
  const child = spawn(process.execPath, [runner, 'bench'], { stdio: 'inherit' })
  const [status] = await once(child, 'exit')
  if (status !== 0) throw new Error(`the lab's benchmark ended with ${status}`)
}
